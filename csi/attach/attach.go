// Package attach is the interface for attaching LUNs: an Attacher converts the result of
// ControllerPublish to a block device and back. The CSI node service uses only this interface.
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
	// ErrInvalid: the attachment is invalid; a retry does not help.
	ErrInvalid = errors.New("invalid attachment")
	// ErrNotAttached: this node has no attachment of the volume.
	ErrNotAttached = errors.New("volume is not attached here")
	// ErrBusy: the device is still in use, so that its removal would break running I/O.
	ErrBusy = errors.New("device is in use")
	// ErrFailed: the attachment exists, but its process or device is gone.
	ErrFailed = errors.New("attachment has failed")
	// ErrCredentials: node and targets reject each other's credentials.
	ErrCredentials = errors.New("node and targets do not agree on CHAP credentials")
)

// CHAP has the credentials of one direction. It is never stored, and prints without its secret.
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

// validID matches valid names of files and folders.
var validID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// ValidID reports whether a volume's ID is valid: it is used as a file name on workers.
func ValidID(volumeID string) bool { return validID.MatchString(volumeID) }

// BootID identifies this boot of the machine: of an earlier boot only files are left.
func BootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(raw)), err
}

// Attachment is how a publish makes a LUN reachable from this node.
type Attachment struct {
	VolumeID   string   `json:"volumeID"`
	Generation uint64   `json:"generation"` // differs for every publish of any volume
	HostIQN    string   `json:"hostIQN"`
	TargetIQN  string   `json:"targetIQN"`
	Portals    []string `json:"portals"` // host:port of every node
	LUN        uint16   `json:"lun"`     // 0..MaxLUN
	WWID       string   `json:"wwid"`    // NAA designator, lower-case hexadecimal
	// Stripe and Legs are of a striped volume, which has neither LUN nor WWID.
	Stripe int64 `json:"stripe,omitempty"` // bytes
	Legs   []Leg `json:"legs,omitempty"`   // in their order
	// Others are the targets of the legs that are not on TargetIQN, each once.
	Others []Target `json:"others,omitempty"`
	// Sessions to each portal, 1..MaxSessions; 0: one.
	Sessions int  `json:"sessions,omitempty"`
	ReadOnly bool `json:"readOnly,omitempty"`
	// Replay: this publish is writable only for replaying the log of the filesystem. The volume is
	// used read-only, with the publish that follows.
	Replay     bool   `json:"replay,omitempty"`
	Pair       string `json:"pair,omitempty"` // of the LUN, if the node can request credentials by its name
	Enroll     bool   `json:"-"`              // the targets require CHAP credentials, which the node requests
	Auth       *CHAP  `json:"-"`              // credentials of the node; nil: none
	MutualAuth *CHAP  `json:"-"`              // credentials of the target; nil: none
}

// RecordVersion is the version of the files in which nodes keep an attachment. It rises when an
// older program could misread one: before version 2 all LUNs of an attachment were at one target.
func (a Attachment) RecordVersion() int {
	if len(a.Others) > 0 {
		return 2
	}
	return 1
}

// MaxRecordVersion is the highest RecordVersion that this program reads.
const MaxRecordVersion = 2

// Same reports whether two attachments are of the same publish, whatever the credentials and the
// number of sessions.
func (a Attachment) Same(b Attachment) bool {
	return a.VolumeID == b.VolumeID && a.Generation == b.Generation && a.HostIQN == b.HostIQN &&
		a.TargetIQN == b.TargetIQN && slices.Equal(a.Portals, b.Portals) && a.LUN == b.LUN && a.WWID == b.WWID && a.ReadOnly == b.ReadOnly &&
		a.Stripe == b.Stripe && slices.Equal(a.Legs, b.Legs) && slices.EqualFunc(a.Others, b.Others, Target.same)
}

// Path is the state of one path to the LUN, or to a LUN of a striped volume.
type Path struct {
	Leg       int        `json:"leg,omitempty"`     // the number of the LUN in Attachment.LUNs
	Session   int        `json:"session,omitempty"` // the number of the session to this portal
	Portal    string     `json:"portal"`
	Connected bool       `json:"connected"`
	Current   bool       `json:"current"` // I/O goes here
	State     alua.State `json:"state"`
	LastError string     `json:"lastError,omitempty"`
	Refused   bool       `json:"refused,omitempty"` // down because of rejected credentials
	NoALUA    bool       `json:"noALUA,omitempty"`  // the ALUA state is ignored on this node; LastError says why
}

// Status of an attachment.
type Status struct {
	Attachment Attachment
	Device     string // path of the block device
	Rdev       uint64 // its device number
	Size       int64  // bytes
	Paths      []Path
	NoUnit     bool // the target reports that the LUN is not mapped to this node: it was fenced, and I/O fails
}

// Attacher attaches volumes to this node. Its methods may be called concurrently; calls for one
// volume are serialized. Attachments outlive the process that created them.
type Attacher interface {
	// Attach makes the LUN available as a block device and returns the device's path. A repeated
	// call returns the same device. An attachment of the same volume from another publish, or a
	// failed one, is removed first: the unpublish in between has fenced it.
	Attach(ctx context.Context, a Attachment) (device string, err error)
	// Detach flushes and removes the device and its record. It works from the durable record,
	// whatever is already gone; without a record it succeeds. ErrBusy while the device is in use.
	Detach(ctx context.Context, volumeID string) error
	// Resize reads the LUN's capacity again and returns the device's size in bytes.
	Resize(ctx context.Context, volumeID string) (int64, error)
	// Status returns the status of an attachment. It does no I/O to the LUN, so it cannot hang.
	// ErrNotAttached without a record, ErrFailed (with the known part of the status) if the device
	// can no longer serve.
	Status(ctx context.Context, volumeID string) (Status, error)
	// Attached lists the volumes that have a record here.
	Attached() ([]string, error)
	// LUNs is the number of their LUNs: a striped volume has several. A record that cannot be read
	// counts as one.
	LUNs() (int, error)
	// Refused lists the attachments with a path that is down because of rejected credentials, with
	// the pair that rejects them. Attachments that do not answer are left out.
	Refused(ctx context.Context) ([]Refusal, error)
	// Renew sets other credentials for the next logins of an attachment to a pair; nil: none.
	// Established sessions continue.
	Renew(ctx context.Context, r Refusal, auth, mutual *CHAP) error
}

// Keys of the publish context, the contract between controller and node. None of them is secret.
const (
	KeyHost       = "hostIQN"
	KeyTarget     = "targetIQN"
	KeyPortals    = "portals" // separated by commas
	KeyLUN        = "lun"
	KeyWWID       = "wwid"
	KeyGeneration = "generation"
	KeyReadOnly   = "readOnly" // "true" if the target rejects writes
	// KeyReplay replaces KeyLUN if the filesystem's log must be replayed first, so that an older
	// node plugin rejects the volume instead of mounting it for writing.
	KeyReplay = "replayLUN"
	KeyPair   = "pair" // the TargetPair for which the node requests credentials
	KeyCHAP   = "chap" // "Mutual" if credentials are required
)

// chapMutual is the one value of KeyCHAP.
const chapMutual = "Mutual"

// Keys of the secrets for publish and stage.
const (
	SecretUser         = "chapUser"
	SecretSecret       = "chapSecret"
	SecretMutualUser   = "chapMutualUser"
	SecretMutualSecret = "chapMutualSecret"
)

// PublishContext converts an attachment for the transfer from controller to node.
func (a Attachment) PublishContext() map[string]string {
	m := map[string]string{KeyHost: a.HostIQN, KeyTarget: a.TargetIQN, KeyPortals: strings.Join(a.Portals, ","),
		KeyLUN: strconv.Itoa(int(a.LUN)), KeyWWID: a.WWID, KeyGeneration: strconv.FormatUint(a.Generation, 10)}
	if a.ReadOnly {
		m[KeyReadOnly] = "true"
	}
	if a.Striped() {
		delete(m, KeyLUN)
		delete(m, KeyWWID)
		a.legsContext(m)
	}
	a.sessionsContext(m)
	if a.Replay {
		m[KeyReplay] = strconv.Itoa(int(a.LUN)) // of a striped volume it is refused: nothing publishes one so
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

// FromPublishContext is the reverse of PublishContext. The error is ErrInvalid and names every
// missing or invalid key.
func FromPublishContext(volumeID string, m map[string]string) (Attachment, error) {
	a := Attachment{VolumeID: volumeID, HostIQN: m[KeyHost], TargetIQN: m[KeyTarget], WWID: m[KeyWWID], ReadOnly: m[KeyReadOnly] == "true",
		Pair: m[KeyPair], Enroll: m[KeyCHAP] != ""}
	number := KeyLUN
	if m[KeyReplay] != "" {
		number, a.Replay = KeyReplay, true
	}
	required := []string{KeyHost, KeyTarget, KeyPortals, number, KeyWWID, KeyGeneration}
	striped := m[KeyStripe] != "" || m[KeyLegs] != "" || m[KeyLegsAt] != "" || m[KeyOthers] != ""
	if striped {
		legs := legsKey(m)
		for _, k := range []string{KeyLUN, KeyWWID, KeyReplay} {
			if m[k] != "" {
				return a, fmt.Errorf("%w: publish context: %s and %s exclude each other", ErrInvalid, k, legs)
			}
		}
		required = []string{KeyHost, KeyTarget, KeyPortals, KeyStripe, legs, KeyGeneration}
		if legs == KeyLegsAt {
			required = append(required, KeyOthers)
		}
	}
	var errs []error
	for _, k := range required {
		if m[k] == "" {
			errs = append(errs, fmt.Errorf("%w: publish context lacks %q", ErrInvalid, k))
		}
	}
	if len(errs) > 0 {
		return a, errors.Join(errs...)
	}
	if a.Enroll && (a.Pair == "" || m[KeyCHAP] != chapMutual) {
		return a, fmt.Errorf("%w: publish context: %s is %q: it requires %s, and must be %s", ErrInvalid, KeyCHAP, m[KeyCHAP], KeyPair, chapMutual)
	}
	a.Portals = strings.Split(m[KeyPortals], ",")
	var err error
	if striped {
		if err := a.parseLegs(m); err != nil {
			return a, err
		}
	} else if a.LUN, err = parseLUN(m[number]); err != nil {
		return a, fmt.Errorf("%w: publish context: %s %q is not in 0..%d", ErrInvalid, number, m[number], MaxLUN)
	}
	if a.Replay && a.ReadOnly {
		return a, fmt.Errorf("%w: publish context: %s and %s exclude each other", ErrInvalid, KeyReplay, KeyReadOnly)
	}
	if a.Sessions, err = parseSessions(m[KeySessions]); err != nil {
		return a, err
	}
	if a.Generation, err = strconv.ParseUint(m[KeyGeneration], 10, 64); err != nil {
		return a, fmt.Errorf("%w: publish context: %s %q is not a number", ErrInvalid, KeyGeneration, m[KeyGeneration])
	}
	return a, nil
}

// ParseSecrets parses CHAP credentials; nil without the keys.
func ParseSecrets(m map[string]string) (auth, mutual *CHAP, err error) {
	if (m[SecretUser] == "") != (m[SecretSecret] == "") || (m[SecretMutualUser] == "") != (m[SecretMutualSecret] == "") {
		return nil, nil, fmt.Errorf("%w: secrets: a CHAP user and its secret must be set together", ErrInvalid)
	}
	if m[SecretUser] != "" {
		auth = &CHAP{User: m[SecretUser], Secret: m[SecretSecret]}
	}
	if m[SecretMutualUser] != "" {
		mutual = &CHAP{User: m[SecretMutualUser], Secret: m[SecretMutualSecret]}
	}
	if mutual != nil && auth == nil {
		return nil, nil, fmt.Errorf("%w: secrets: mutual CHAP requires one-way CHAP as well", ErrInvalid)
	}
	return auth, mutual, nil
}
