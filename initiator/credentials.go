package initiator

import (
	"errors"

	"github.com/gemel-storage/gemel/internal/pdu"
)

// SetCredentials has every login from now on use other credentials; nil: none. Sessions that are up
// continue. A path that is refused tries again within a second automatically.
func (d *Device) SetCredentials(auth, mutual *CHAP) error {
	if err := errors.Join(checkCHAP(auth, mutual)...); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cfg.Auth, d.cfg.MutualAuth = auth, mutual
	return nil
}

func (d *Device) credentials() (auth, mutual *CHAP) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cfg.Auth, d.cfg.MutualAuth
}

// CredentialsRefused tells whether an error is one that other credentials may fix: the target
// refused ours, did not prove itself, or wants none. An initiator that the target does not know
// (0202) needs more than that.
func CredentialsRefused(err error) bool {
	var le *LoginError
	if errors.As(err, &le) {
		return le.Status == pdu.LoginAuthFailed
	}
	return errors.Is(err, ErrAuth)
}
