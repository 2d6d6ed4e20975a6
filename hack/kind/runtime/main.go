// An OCI runtime for Docker on a machine that itself lacks capabilities (a sandbox without
// CAP_SYS_RESOURCE, say): runc refuses to give a privileged container what the machine does not
// have. This one takes from a container's or process's description the capabilities that are
// missing here, and negative OOM scores where they could not be set, and becomes runc. Where
// nothing is missing it does nothing.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// capabilities by their number in linux/capability.h.
var capabilities = strings.Fields(`CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN
SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG
WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`)

func main() {
	if absent := missing(); len(absent) > 0 {
		if err := adapt(parse(os.Args[1:]), absent); err != nil {
			fmt.Fprintln(os.Stderr, "runtime:", err) // runc may still manage
		}
	}
	runc, err := exec.LookPath("runc")
	if err == nil {
		err = syscall.Exec(runc, append([]string{runc}, os.Args[1:]...), os.Environ())
	}
	fmt.Fprintln(os.Stderr, "runtime: runc:", err)
	os.Exit(1)
}

// missing returns the capabilities that the bounding set of this process lacks.
func missing() map[string]bool {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(status)) {
		value, ok := strings.CutPrefix(line, "CapBnd:")
		if !ok {
			continue
		}
		bits, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err != nil {
			return nil
		}
		absent := map[string]bool{}
		for i, name := range capabilities {
			if bits&(1<<i) == 0 {
				absent["CAP_"+name] = true
			}
		}
		return absent
	}
	return nil
}

// call is what of runc's command line matters here.
type call struct {
	command string // create, run, exec; "" for all others
	bundle  string // folder of config.json
	process string // file that describes the process of an exec
}

func parse(args []string) call {
	c := call{bundle: "."}
	for i, arg := range args {
		name, value, joined := strings.Cut(arg, "=")
		if !joined && i+1 < len(args) {
			value = args[i+1]
		}
		switch name {
		case "create", "run", "exec":
			if c.command == "" {
				c.command = name
			}
		case "--bundle", "-b":
			c.bundle = value
		case "--process", "-p":
			c.process = value
		}
	}
	return c
}

func adapt(c call, absent map[string]bool) error {
	switch {
	case c.command == "create" || c.command == "run":
		return rewrite(filepath.Join(c.bundle, "config.json"), func(doc map[string]any) {
			if process, ok := doc["process"].(map[string]any); ok {
				reduce(process, absent)
			}
		})
	case c.command == "exec" && c.process != "":
		return rewrite(c.process, func(process map[string]any) { reduce(process, absent) })
	}
	return nil
}

func reduce(process map[string]any, absent map[string]bool) {
	if sets, ok := process["capabilities"].(map[string]any); ok {
		for set, value := range sets {
			list, _ := value.([]any)
			kept := []any{}
			for _, entry := range list {
				if name, _ := entry.(string); !absent[name] {
					kept = append(kept, entry)
				}
			}
			sets[set] = kept
		}
	}
	if score, ok := process["oomScoreAdj"].(json.Number); ok && absent["CAP_SYS_RESOURCE"] && strings.HasPrefix(score.String(), "-") {
		process["oomScoreAdj"] = 0
	}
}

// rewrite keeps numbers as they are written: some do not fit a float64.
func rewrite(path string, change func(map[string]any)) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(file)
	decoder.UseNumber()
	var doc map[string]any
	err = decoder.Decode(&doc)
	_ = file.Close()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	change(doc)
	text, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}
