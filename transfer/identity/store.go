package identity

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// ErrExists is a directory that already holds an identity which must not be lost.
var ErrExists = errors.New("there is an identity already")

// DefaultDir is where a user's identity lies by default: the directory penstock in
// $XDG_CONFIG_HOME, or in $HOME/.config.
func DefaultDir() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("identity: no directory for configuration: %w; set XDG_CONFIG_HOME or name a directory",
			err)
	}
	return filepath.Join(dir, "penstock"), nil
}

// makeDir makes a directory that only its owner can enter, and checks one that exists.
func makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	return checkDir(dir)
}

func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("identity: %w", err)
	}
	return true, nil
}

// Setup opens the authority of a directory. If there is none it makes one, and a certificate for
// the node of this machine, whose name is name and which is valid for so long (0: LeafValid), in
// files that only their owner can read; made says so. Where there is one, name must be "" or the
// node's. A directory that belongs to the authority of another machine is refused with [ErrExists].
func Setup(dir, name string, valid time.Duration) (a *Authority, made bool, err error) {
	if err := makeDir(dir); err != nil {
		return nil, false, err
	}
	haveCA, err := exists(filepath.Join(dir, AuthorityFile))
	if err != nil {
		return nil, false, err
	}
	haveNode, err := exists(filepath.Join(dir, NodeFile))
	if err != nil {
		return nil, false, err
	}
	if haveNode {
		p, err := Inspect(dir)
		if err != nil {
			return nil, false, err
		}
		if !haveCA {
			return nil, false, fmt.Errorf("identity: %s holds the node %q of an authority on another machine; pair "+
				"there, or use another directory: %w", dir, p.Self.Name, ErrExists)
		}
		if name != "" && name != p.Self.Name {
			return nil, false, fmt.Errorf("identity: %s already holds the node %q, not %q: %w", dir, p.Self.Name, name,
				ErrExists)
		}
		a, err := OpenAuthority(dir)
		return a, false, err
	}
	if err := CheckName(name); err != nil {
		return nil, false, err
	}
	if !haveCA {
		a, err := NewAuthority()
		if err != nil {
			return nil, false, err
		}
		b, err := encodeNode(tls.Certificate{Certificate: [][]byte{a.cert.Raw}, PrivateKey: a.key})
		if err != nil {
			return nil, false, err
		}
		// Of two programs that do this at a time, one makes the authority and the other opens it.
		if err := createFile(filepath.Join(dir, AuthorityFile), b); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, false, err
		}
	}
	if a, err = OpenAuthority(dir); err != nil {
		return nil, false, err
	}
	c, err := a.Credentials(name, IssueOptions{Valid: valid})
	if err != nil {
		return nil, false, err
	}
	return a, true, save(dir, c)
}

// save writes the files of a node. The certificate comes last: a directory with one is complete.
func save(dir string, c Credentials) error {
	b, err := encodeNode(c.Certificate)
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(dir, CAFile), encodeCertificates(c.Roots...), 0o644); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, NodeFile), b, 0o600)
}

// OpenAuthority reads the authority of a directory that [Setup] has made; without one the error
// wraps [ErrMissing]. What it signs is written down there.
func OpenAuthority(dir string) (*Authority, error) {
	path := filepath.Join(dir, AuthorityFile)
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	b, err := readFile(path, true)
	if err != nil {
		return nil, err
	}
	defer clear(b)
	cs, err := certificates(path, b)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(b, b)
	if err != nil {
		return nil, fmt.Errorf("identity: %s: %w: %w", path, err, ErrCredentials)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !cs[0].IsCA || len(cs) != 1 {
		return nil, fmt.Errorf("identity: %s: expected the certificate of one authority and its key: %w", path,
			ErrCredentials)
	}
	return &Authority{cert: cs[0], key: key, clock: time.Now, dir: dir}, nil
}

// bundle is what nodes of this authority shall trust: its root first, then the others of its
// directory.
func (a *Authority) bundle() ([]*x509.Certificate, error) {
	out := []*x509.Certificate{a.cert}
	if a.dir == "" {
		return out, nil
	}
	path := filepath.Join(a.dir, CAFile)
	if have, err := exists(path); err != nil || !have {
		return out, err
	}
	b, err := readFile(path, false)
	if err != nil {
		return nil, err
	}
	cs, err := certificates(path, b)
	if err != nil {
		return nil, err
	}
	for _, c := range cs {
		if !c.Equal(a.cert) {
			out = append(out, c)
		}
	}
	return out, nil
}

// Contents is what a directory holds; see [Inspect].
type Contents struct {
	Dir       string
	Self      Peer                // the node's certificate
	Issuer    string              // fingerprint of the root that issued it; "": none of the bundle
	Roots     []*x509.Certificate // the bundle
	Authority *x509.Certificate   // that this directory issues with; nil: none
	Rules     *Rules              // nil: there is no file of rules
}

// Inspect reads what a directory holds, also where certificates have ended and a node could not use
// it any more.
func Inspect(dir string) (Contents, error) {
	out := Contents{Dir: dir}
	if err := checkDir(dir); err != nil {
		return out, err
	}
	c, err := readCredentials(dir)
	if err != nil {
		return out, err
	}
	if out.Self, err = peerOf(c.Certificate.Leaf); err != nil {
		return out, err
	}
	out.Roots = c.Roots
	for _, r := range c.Roots {
		if c.Certificate.Leaf.CheckSignatureFrom(r) == nil {
			out.Issuer = Fingerprint(r)
		}
	}
	switch a, err := OpenAuthority(dir); {
	case err == nil:
		out.Authority = a.cert
	case !errors.Is(err, ErrMissing):
		return out, err
	}
	out.Rules, err = dirRules(dir)
	return out, err
}

func readCredentials(dir string) (Credentials, error) {
	node, ca := filepath.Join(dir, NodeFile), filepath.Join(dir, CAFile)
	nb, err := readFile(node, true)
	if err != nil {
		return Credentials{}, err
	}
	defer clear(nb)
	cb, err := readFile(ca, false)
	if err != nil {
		return Credentials{}, err
	}
	return parseCredentials(node, node, ca, nb, nb, cb)
}

// Renew gives the node of an authority's own directory a new key and a new certificate. Programs
// that run take it up by themselves.
func (a *Authority) Renew(o IssueOptions) (Peer, error) {
	if a.dir == "" {
		return Peer{}, fmt.Errorf("identity: this authority has no directory: %w", ErrMissing)
	}
	old, err := readCredentials(a.dir)
	if err != nil {
		return Peer{}, err
	}
	self, err := peerOf(old.Certificate.Leaf)
	if err != nil {
		return Peer{}, err
	}
	c, err := a.Credentials(self.Name, o)
	if err != nil {
		return Peer{}, err
	}
	if err := save(a.dir, c); err != nil {
		return Peer{}, err
	}
	return peerOf(c.Certificate.Leaf)
}

// Export makes a key and a certificate for a name and returns them with the roots as one PEM file,
// for a machine that the authority cannot reach. Every reader of the file can act as that node.
func (a *Authority) Export(name string, o IssueOptions) ([]byte, Peer, error) {
	c, err := a.Credentials(name, o)
	if err != nil {
		return nil, Peer{}, err
	}
	b, err := encodeNode(c.Certificate)
	if err != nil {
		return nil, Peer{}, err
	}
	p, err := peerOf(c.Certificate.Leaf)
	return append(b, encodeCertificates(c.Roots...)...), p, err
}

// Import makes the identity of a directory from what [Authority.Export] returned. It replaces one
// of the same name and authority, and refuses to replace any other with [ErrExists].
func Import(dir string, bundle []byte) (Contents, error) {
	bs, err := blocks("the bundle", bundle)
	if err != nil {
		return Contents{}, err
	}
	var node, roots []byte
	for _, p := range bs {
		text := pem.EncodeToMemory(p)
		if c, err := x509.ParseCertificate(p.Bytes); p.Type == "CERTIFICATE" && err == nil && c.IsCA {
			roots = append(roots, text...)
		} else {
			node = append(node, text...)
		}
	}
	defer clear(node)
	if roots == nil {
		return Contents{}, fmt.Errorf("identity: the bundle holds no root certificate: %w", ErrCredentials)
	}
	c, err := parseCredentials("the bundle", "the bundle", "the bundle", node, node, roots)
	if err != nil {
		return Contents{}, err
	}
	s, err := newState(c, time.Now())
	if err != nil {
		return Contents{}, err
	}
	if err := makeDir(dir); err != nil {
		return Contents{}, err
	}
	if err := replaceable(dir, s.self.Name, func(r *x509.Certificate) bool {
		return slices.ContainsFunc(c.Roots, r.Equal)
	}); err != nil {
		return Contents{}, err
	}
	if err := save(dir, c); err != nil {
		return Contents{}, err
	}
	return Inspect(dir)
}

// replaceable refuses to write a node of the given name and an authority of its own where another
// one is.
func replaceable(dir, name string, own func(root *x509.Certificate) bool) error {
	if have, err := exists(filepath.Join(dir, AuthorityFile)); err != nil {
		return err
	} else if have {
		return fmt.Errorf("identity: %s holds an authority; its node cannot join another one. Use another directory: %w", dir, ErrExists)
	}
	if have, err := exists(filepath.Join(dir, NodeFile)); err != nil || !have {
		return err
	}
	c, err := Inspect(dir)
	if err != nil {
		return err
	}
	if c.Self.Name != name {
		return fmt.Errorf("identity: %s already holds the node %q, not %q. Use another directory: %w", dir, c.Self.Name,
			name, ErrExists)
	}
	if slices.ContainsFunc(c.Roots, own) {
		return nil
	}
	return fmt.Errorf("identity: %s already holds the node %q of another authority. Use another directory: %w", dir,
		name, ErrExists)
}

// Issued is a certificate that an authority has signed.
type Issued struct {
	Serial   string
	Name     string
	NotAfter time.Time
}

// Issued are the certificates signed so far, oldest first. Of an authority from files these are all
// that it ever signed.
func (a *Authority) Issued() ([]Issued, error) {
	if a.dir == "" {
		a.mu.Lock()
		defer a.mu.Unlock()
		return slices.Clone(a.issued), nil
	}
	f, err := openFile(filepath.Join(a.dir, IssuedFile), false)
	if errors.Is(err, ErrMissing) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(f) // it grows with the fleet, and the file is this user's own
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	return parseIssued(string(b)), nil
}

// Has reports whether a name has a certificate that has not ended.
func (a *Authority) Has(name string) (bool, error) {
	issued, err := a.Issued()
	now := a.clock()
	return slices.ContainsFunc(issued, func(i Issued) bool { return i.Name == name && now.Before(i.NotAfter) }), err
}

// parseIssued reads lines of serial, name and end. One that was cut off, by a power failure say, is
// passed over.
func parseIssued(s string) (out []Issued) {
	for line := range strings.Lines(s) {
		w := strings.Fields(line)
		if len(w) != 3 || CheckName(w[1]) != nil {
			continue
		}
		if t, err := time.Parse(time.RFC3339, w[2]); err == nil {
			out = append(out, Issued{Serial: w[0], Name: w[1], NotAfter: t})
		}
	}
	return out
}

// record writes down what is about to be handed out.
func (a *Authority) record(p Peer) error {
	if a.dir == "" {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.issued = append(a.issued, Issued{p.Serial, p.Name, p.NotAfter})
		return nil
	}
	f, err := os.OpenFile(filepath.Join(a.dir, IssuedFile), os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	fi, err := f.Stat()
	if err == nil {
		err = checkOwner(f.Name(), sys.Identity(fi).UID, os.Geteuid())
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	line := fmt.Sprintf("%s %s %s\n", p.Serial, p.Name, p.NotAfter.UTC().Format(time.RFC3339))
	if end, err := f.Seek(0, io.SeekEnd); err == nil && end > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, end-1); err == nil && last[0] != '\n' {
			line = "\n" + line // after one that was cut off
		}
	}
	_, err = io.WriteString(f, line)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	return nil
}
