// Command reference prints docs/reference/flags.md: the --help text of every command of every
// program. `make generate` runs it.
package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	operator "github.com/gemel-storage/gemel/controllers/app"
	"github.com/gemel-storage/gemel/controllers/kubectlgemel"
	csi "github.com/gemel-storage/gemel/csi/app"
	target "github.com/gemel-storage/gemel/dataplane/app"
)

const header = `# Flags

<!-- Generated from --help by hack/reference. Change the help texts in the code, and run make generate. -->

Every program and every command of it with its flags, as ` + "`--help`" + ` prints them. A command also takes the global flags that
its text lists.
`

// programs has a new tree of commands for each call: --help is a flag that stays set in a tree once
// it was parsed.
var programs = []func() *cobra.Command{target.Command, csi.Command, operator.Command, kubectlgemel.Command}

func main() {
	text, err := flags()
	if err == nil {
		_, err = os.Stdout.WriteString(text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

// flags is the whole page.
func flags() (string, error) {
	_ = os.Unsetenv("POD_NAMESPACE") // the default of a flag of the operator
	var b strings.Builder
	b.WriteString(header)
	for _, program := range programs {
		for _, path := range paths(program(), nil) {
			text, err := help(program(), path)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&b, "\n%s %s\n\n```text\n%s```\n", strings.Repeat("#", 2+min(len(path), 1)), strings.Join(append([]string{program().Name()}, path...), " "), text)
		}
	}
	return b.String(), nil
}

// paths are the arguments that name each command of a tree, the root's first. Hidden ones are for
// programs, and cobra adds others (help, completion) that are the same everywhere.
func paths(cmd *cobra.Command, at []string) [][]string {
	all := [][]string{at}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			all = append(all, paths(c, append(at[:len(at):len(at)], c.Name()))...)
		}
	}
	return all
}

// help is the --help text of a command.
func help(cmd *cobra.Command, path []string) (string, error) {
	var b bytes.Buffer
	cmd.SetOut(&b)
	cmd.SetErr(&b)
	cmd.SetArgs(append(path[:len(path):len(path)], "--help"))
	if err := cmd.Execute(); err != nil {
		return "", fmt.Errorf("%s %s --help: %w", cmd.Name(), strings.Join(path, " "), err)
	}
	return b.String(), nil
}
