package tcp

import (
	"cmp"
	"fmt"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/seal"
)

// channel is the encryption of one connection, between its handshake and its path.
type channel struct {
	out, in *keyed
	fixed   bool   // the peer cannot follow a change of keys
	kernel  bool   // the socket is prepared for the kernel's TLS
	why     string // why not
}

// keyed is one direction: its secret, for the kernel, and what seals or opens without it.
type keyed struct {
	secret seal.Secret
	sealer *seal.Sealer
	opener *seal.Opener
}

// confirmSize is the size of the record that each side sends first: it is empty, and its tag shows
// that the side has the secret and saw the same hello and answer.
const confirmSize = seal.Overhead

// newChannel derives the keys of one connection. Hello and answer, as this side sent and saw them,
// are part of every key: an attacker who changes them on the way makes the first record fail. Both
// hold a nonce, so that no key is ever used twice.
func newChannel(secret []byte, dialer bool, h *hello, said, answered []byte, limit uint64) (*channel, error) {
	transcript := append(append(make([]byte, 0, 2*helloSize), said...), answered...)
	derive := func(who string) (*keyed, error) {
		s, err := seal.Derive(secret, fmt.Sprintf("penstock tcp %d %s %d", version, who, h.index), transcript)
		return &keyed{secret: s}, err
	}
	out, err := derive("dialer")
	if err != nil {
		return nil, err
	}
	in, err := derive("acceptor")
	if err != nil {
		return nil, err
	}
	if !dialer {
		out, in = in, out
	}
	if out.sealer, err = seal.NewSealer(out.secret, seal.Options{Limit: limit}); err != nil {
		return nil, err
	}
	if in.opener, err = seal.NewOpener(in.secret, seal.Options{Limit: limit}); err != nil {
		return nil, err
	}
	return &channel{out: out, in: in}, nil
}

// confirm is this side's first record.
func (c *channel) confirm(b []byte) []byte { return b[:c.out.sealer.Seal(b, seal.Data, 0)] }

// confirmed checks the other side's first record.
func (c *channel) confirmed(b []byte) error {
	_, content, err := c.in.opener.Open(nil, b)
	if err == nil && len(content) != 0 {
		err = seal.ErrRecord
	}
	if err != nil {
		return fmt.Errorf("it has not the secret of this session, or hello and answer were changed on the way: %w: %w",
			path.ErrIntegrity, err)
	}
	return nil
}

// attach prepares a connected socket for the kernel's TLS, if that is wanted and there.
func (o *Options) attach(fd int) (ok bool, why string, err error) {
	if o.KTLS == Off {
		return false, "as configured", nil
	}
	if err := sys.AttachTLS(fd); err != nil {
		if o.KTLS == On {
			return false, "", fmt.Errorf("tcp: kTLS is on, but this kernel does not have it: %w: %w; load the module "+
				"tls, or leave the choice to the path", path.ErrUnavailable, err)
		}
		return false, fmt.Sprintf("the kernel does not have it: %v", err), nil
	}
	return true, "", nil
}

// install gives the keys to the kernel or to the stream, each direction by itself.
func (c *channel) install(s *stream, fd int, must bool) error {
	var firstErr error
	set := func(k *keyed, dir int, seq uint64) bool {
		if !c.kernel {
			return false
		}
		key, iv, err := k.secret.Keys()
		if err == nil {
			err = sys.SetTLSKeys(fd, dir, key, iv, seq)
		}
		if err != nil {
			firstErr = cmp.Or(firstErr, err)
			c.why = fmt.Sprintf("the kernel does not take the keys: %v", err)
		}
		return err == nil
	}
	s.kernelOut = set(c.out, sys.TLSTx, c.out.sealer.Seq())
	s.kernelIn = set(c.in, sys.TLSRx, c.in.opener.Seq())
	if must && firstErr != nil {
		return fmt.Errorf("tcp: kTLS is on, but %s: %w: %w", c.why, path.ErrUnavailable, firstErr)
	}
	if !s.kernelOut {
		s.tx = &recordOut{seal: c.out.sealer, fixed: c.fixed}
	}
	if !s.kernelIn {
		s.rx = &recordIn{open: c.in.opener}
	}
	return nil
}
