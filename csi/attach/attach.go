// Package attach is how a node reaches a LUN: an Attacher turns what ControllerPublish returned into a block device
// and back. The CSI node service knows only this interface.
package attach

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gemel-storage/gemel/internal/alua"
)

// Errors of attachers. Test for them with errors.Is.
var (
	// ErrInvalid: the attachment itself cannot be right; trying again does not help.
	ErrInvalid = errors.New("invalid attachment")
	// ErrNotAttached: this node holds no attachment of the volume.
	ErrNotAttached = errors.New("volume is not attached here")
	// ErrBusy: something still holds the device, so that taking it away would cut into running I/O.
	ErrBusy = errors.New("device is in use")
	// ErrFailed: the attachment is there, but what serves it is gone.
	ErrFailed = errors.New("attachment has failed")
	// ErrCredentials: node and targets do not take each other's credentials.
	ErrCredentials = errors.New("node and targets do not agree on CHAP credentials")
)

// CHAP is one direction's credentials. It is never stored and prints without its secret.
type CHAP struct {
	User   string
	Secret string
}

// String hides the secret.
func (c CHAP) String() string { return fmt.Sprintf("chap(%s)", c.User) }

// GoString hides the secret.
func (c CHAP) GoString() string { return c.String() }

// MaxLUN is the largest LUN number that a host has (flat addressing, SAM-5 §4.7.7).
const MaxLUN = 16383

// validID admits what may be the name of a file or folder.
var validID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// ValidID tells whether a volume's id can be one of ours: what is kept on a worker goes by its name.
func ValidID(volumeID string) bool { return validID.MatchString(volumeID) }

// BootID names this boot of the machine: of what was done in another one, only files are left.
func BootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(raw)), err
}

// Attachment is one LUN as one publish made it reachable from this node.
type Attachment struct {
	VolumeID   string   `json:"volumeID"`
	Generation uint64   `json:"generation"` // differs for every publish of any volume
	HostIQN    string   `json:"hostIQN"`
	TargetIQN  string   `json:"targetIQN"`
	Portals    []string `json:"portals"` // host:port of every node
	LUN        uint16   `json:"lun"`     // 0..MaxLUN
	WWID       string   `json:"wwid"`    // NAA designator, lower-case hexadecimal
	ReadOnly   bool     `json:"readOnly,omitempty"`
	// Replay: this publish may write for one thing only, to replay the log of the filesystem. It is used read-only, under the publish that follows.
	Replay     bool   `json:"replay,omitempty"`
	Pair       string `json:"pair,omitempty"` // that holds the LUN, where the node can ask for credentials by its name
	Enroll     bool   `json:"-"`              // the targets want CHAP credentials, which the node asks for
	Auth       *CHAP  `json:"-"`              // how the node authenticates; nil: not
	MutualAuth *CHAP  `json:"-"`              // how the target must; nil: not
}

// Same tells whether two attachments are one and the same publish, whatever the credentials.
func (a Attachment) Same(b Attachment) bool {
	return a.VolumeID == b.VolumeID && a.Generation == b.Generation && a.HostIQN == b.HostIQN &&
		a.TargetIQN == b.TargetIQN && slices.Equal(a.Portals, b.Portals) && a.LUN == b.LUN && a.WWID == b.WWID && a.ReadOnly == b.ReadOnly
}

// Path is the state of one path to the LUN.
type Path struct {
	Portal    string     `json:"portal"`
	Connected bool       `json:"connected"`
	Current   bool       `json:"current"` // I/O goes here
	State     alua.State `json:"state"`
	LastError string     `json:"lastError,omitempty"`
	Refused   bool       `json:"refused,omitempty"` // it is down because of its credentials
	NoALUA    bool       `json:"noALUA,omitempty"`  // what the target says of it is not followed on this node; LastError says by whom
}

// Status is what an attachment looks like now.
type Status struct {
	Attachment Attachment
	Device     string // path of the block device
	Rdev       uint64 // its device number
	Size       int64  // bytes
	Paths      []Path
	NoUnit     bool // the target says that this node has no such LUN (any more): it was fenced, and I/O fails
}

// Attacher attaches volumes to this node. Its methods may be called concurrently; calls for one volume are serialized.
// Attachments outlive the process that made them.
type Attacher interface {
	// Attach makes the LUN available as a block device and returns the device's path. Asking again for what is attached
	// returns the same device. An attachment of the same volume from another publish, or one that has failed, is torn down first:
	// its data was fenced off by the unpublish that came in between.
	Attach(ctx context.Context, a Attachment) (device string, err error)
	// Detach flushes, takes the device away and forgets it. It works from a durable record, whatever is already
	// gone; without a record it succeeds. ErrBusy when something still uses the device.
	Detach(ctx context.Context, volumeID string) error
	// Resize reads the LUN's capacity again and returns the device's size in bytes.
	Resize(ctx context.Context, volumeID string) (int64, error)
	// Status reports an attachment. It never does I/O to the LUN, so it cannot hang with it. ErrNotAttached without a record,
	// ErrFailed (with as much of the status as is known) when the device cannot serve any more.
	Status(ctx context.Context, volumeID string) (Status, error)
	// Attached lists the volumes that have a record here.
	Attached() ([]string, error)
	// Refused lists the attachments that have a path which is down because of its credentials. What cannot be asked is left out.
	Refused(ctx context.Context) ([]Attachment, error)
	// Renew gives an attachment other credentials for its next logins; nil: none. Sessions that are up go on.
	Renew(ctx context.Context, volumeID string, auth, mutual *CHAP) error
}

// Keys of the publish context, the contract between controller and node. None of them is secret.
const (
	KeyHost       = "hostIQN"
	KeyTarget     = "targetIQN"
	KeyPortals    = "portals" // separated by commas
	KeyLUN        = "lun"
	KeyWWID       = "wwid"
	KeyGeneration = "generation"
	KeyReadOnly   = "readOnly" // "true" when the target refuses writes
	// KeyReplay is in place of KeyLUN when the filesystem's log is to be replayed first, so that a node plugin that does not know of it refuses
	// the volume, and does not mount it for writing.
	KeyReplay = "replayLUN"
	KeyPair   = "pair" // where the node asks for credentials: of which TargetPair
	KeyCHAP   = "chap" // "Mutual" when it has to
)

// chapMutual is the one value of KeyCHAP.
const chapMutual = "Mutual"

// Keys of the secrets that publish and stage take.
const (
	SecretUser         = "chapUser"
	SecretSecret       = "chapSecret"
	SecretMutualUser   = "chapMutualUser"
	SecretMutualSecret = "chapMutualSecret"
)

// PublishContext is how an attachment travels from controller to node.
func (a Attachment) PublishContext() map[string]string {
	m := map[string]string{KeyHost: a.HostIQN, KeyTarget: a.TargetIQN, KeyPortals: strings.Join(a.Portals, ","),
		KeyLUN: strconv.Itoa(int(a.LUN)), KeyWWID: a.WWID, KeyGeneration: strconv.FormatUint(a.Generation, 10)}
	if a.ReadOnly {
		m[KeyReadOnly] = "true"
	}
	if a.Replay {
		m[KeyReplay] = m[KeyLUN]
		delete(m, KeyLUN)
	}
	if a.Pair != "" {
		m[KeyPair] = a.Pair
	}
	if a.Enroll {
		m[KeyCHAP] = chapMutual
	}
	return m
}

// FromPublishContext is the reverse of PublishContext. Every missing or wrong key is named; the error is ErrInvalid.
func FromPublishContext(volumeID string, m map[string]string) (Attachment, error) {
	a := Attachment{VolumeID: volumeID, HostIQN: m[KeyHost], TargetIQN: m[KeyTarget], WWID: m[KeyWWID], ReadOnly: m[KeyReadOnly] == "true",
		Pair: m[KeyPair], Enroll: m[KeyCHAP] != ""}
	number := KeyLUN
	if m[KeyReplay] != "" {
		number, a.Replay = KeyReplay, true
	}
	var errs []error
	for _, k := range []string{KeyHost, KeyTarget, KeyPortals, number, KeyWWID, KeyGeneration} {
		if m[k] == "" {
			errs = append(errs, fmt.Errorf("%w: publish context lacks %q", ErrInvalid, k))
		}
	}
	if len(errs) > 0 {
		return a, errors.Join(errs...)
	}
	if a.Enroll && (a.Pair == "" || m[KeyCHAP] != chapMutual) {
		return a, fmt.Errorf("%w: publish context: %s %q needs %s, and is not known unless %s", ErrInvalid, KeyCHAP, m[KeyCHAP], KeyPair, chapMutual)
	}
	a.Portals = strings.Split(m[KeyPortals], ",")
	lun, err := strconv.ParseUint(m[number], 10, 16)
	if err != nil || lun > MaxLUN {
		return a, fmt.Errorf("%w: publish context: %s %q is not in 0..%d", ErrInvalid, number, m[number], MaxLUN)
	}
	if a.Replay && a.ReadOnly {
		return a, fmt.Errorf("%w: publish context: %s and %s exclude each other", ErrInvalid, KeyReplay, KeyReadOnly)
	}
	a.LUN = uint16(lun)
	if a.Generation, err = strconv.ParseUint(m[KeyGeneration], 10, 64); err != nil {
		return a, fmt.Errorf("%w: publish context: %s %q is not a number", ErrInvalid, KeyGeneration, m[KeyGeneration])
	}
	return a, nil
}

// ParseSecrets reads CHAP credentials; without the keys there are none.
func ParseSecrets(m map[string]string) (auth, mutual *CHAP, err error) {
	if (m[SecretUser] == "") != (m[SecretSecret] == "") || (m[SecretMutualUser] == "") != (m[SecretMutualSecret] == "") {
		return nil, nil, fmt.Errorf("%w: secrets: a CHAP user and its secret come together", ErrInvalid)
	}
	if m[SecretUser] != "" {
		auth = &CHAP{User: m[SecretUser], Secret: m[SecretSecret]}
	}
	if m[SecretMutualUser] != "" {
		mutual = &CHAP{User: m[SecretMutualUser], Secret: m[SecretMutualSecret]}
	}
	if mutual != nil && auth == nil {
		return nil, nil, fmt.Errorf("%w: secrets: mutual CHAP needs one-way CHAP as well", ErrInvalid)
	}
	return auth, mutual, nil
}
