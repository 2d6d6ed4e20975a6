//go:build !race

package pair

var buildFlags []string
