package node

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/gemel-storage/gemel/csi/durable"
)

// name is this node's iSCSI name, bound to the machine ID, which a copy of the machine does not
// have.
type name struct {
	IQN       string `json:"iqn"`
	NodeName  string `json:"nodeName"`
	MachineID string `json:"machineID"`
}

// iqnPrefix: RFC 7143 §4.2.7.3.
const iqnPrefix = "iqn.2026-11.storage.gemel:node."

// validIQN matches what Gemel's targets accept: lower case, up to 223 bytes.
var validIQN = regexp.MustCompile(`^(iqn|eui|naa)\.[a-z0-9.:-]{1,219}$`)

// CheckIQN returns an error for an invalid name.
func CheckIQN(s string) error {
	if !validIQN.MatchString(s) {
		return fmt.Errorf("%q is not an iSCSI name of the form iqn.YYYY-MM.reversed.domain:string in lower case", s)
	}
	return nil
}

// InitiatorName returns the node's name and creates one if there is none. A machine with another
// machine ID gets a new name: machines that are copied from one image with this folder would
// otherwise share a name, and with it their LUNs.
func InitiatorName(stateDir, nodeName, machineID string, log *slog.Logger) (string, error) {
	path := filepath.Join(stateDir, "initiator-name.json")
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return "", fmt.Errorf("initiator name: %w", err)
	default:
		var n name
		if err := json.Unmarshal(raw, &n); err != nil {
			return "", fmt.Errorf("initiator name: %s: %w", path, err)
		}
		if err := CheckIQN(n.IQN); err != nil {
			return "", fmt.Errorf("initiator name: %s: %w", path, err)
		}
		if n.MachineID == machineID {
			return n.IQN, nil
		}
		log.Warn("this state folder is from another machine: creating a new initiator name", "was", n.IQN, "machine", machineID)
	}
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails
	n := name{IQN: iqnPrefix + label(nodeName) + "." + hex.EncodeToString(b[:]), NodeName: nodeName, MachineID: machineID}
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return "", fmt.Errorf("initiator name: %w", err)
	}
	return n.IQN, durable.WriteJSON(path, n)
}

// label converts a node's name for an iSCSI name; the random part after it makes the name unique.
func label(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		}
		return '-'
	}, strings.ToLower(s))
	if s == "" {
		return "node"
	}
	return s[:min(len(s), 100)]
}

// MachineID of this machine (machine-id(5)), empty if there is none.
func MachineID() string {
	raw, err := os.ReadFile("/etc/machine-id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}
