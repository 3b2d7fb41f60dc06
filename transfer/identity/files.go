package identity

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// Names of the files of a directory.
const (
	NodeFile      = "node.pem"      // a node's certificate and key, 0600
	CAFile        = "ca.pem"        // the roots that a node trusts, one or more
	PolicyFile    = "policy"        // rights and denials, see Rules
	AuthorityFile = "authority.pem" // certificate and key of the authority, 0600; only where certificates are issued
	IssuedFile    = "issued"        // what the authority has issued
	PendingFile   = "pending.pem"   // a key that waits for its certificate, see NewKey, 0600
)

// maxFile is the most that is read of any file here.
const maxFile = 1 << 20

// Open reads the identity of a directory, which "penstock pair" has made or another tool: see
// [Options] for the names of files. Directory and files must belong to the effective user or to
// root; the key must not be readable, and nothing writable, for others. The kubelet's volumes pass:
// root's files may be readable for a group of this process, and a directory on a read-only mount
// may have any mode. Without files the error wraps [ErrMissing] and says what makes them.
func Open(dir string, o Options) (*Identity, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	at := func(name string) string {
		if filepath.IsAbs(name) {
			return name
		}
		return filepath.Join(dir, name)
	}
	cert := at(cmp.Or(o.Cert, NodeFile))
	key := at(cmp.Or(o.Key, cert))
	w := &watch{interval: int64(cmp.Or(o.Interval, time.Second))}
	w.credentials.files = []*file{{path: cert, secret: key == cert}, {path: at(cmp.Or(o.CA, CAFile))}}
	if key != cert {
		w.credentials.files = append(w.credentials.files, &file{path: key, secret: true})
	}
	w.rules.files = []*file{{path: at(cmp.Or(o.Policy, PolicyFile)), optional: true}}
	i := &Identity{clock: clockOr(o.Clock), watch: w}
	s, err := w.loadCredentials(i.clock())
	if err != nil {
		return nil, err
	}
	i.now.Store(s)
	i.rules.Store(o.Rules)
	switch r, err := w.rules.loadRules(); {
	case err != nil:
		return nil, err
	case r != nil:
		i.rules.Store(r)
		w.hadRules = true
	case o.Policy != "":
		return nil, fmt.Errorf("identity: %s does not exist: expected the file of rules that was asked for: %w",
			w.rules.files[0].path, ErrPolicy)
	}
	if own := filepath.Join(dir, PolicyFile); w.rules.files[0].path != own {
		w.denials.files = []*file{{path: own, optional: true}}
		r, err := w.denials.loadRules()
		if err != nil {
			return nil, err
		}
		i.denials.Store(r)
	}
	w.next.Store(i.clock().UnixNano() + w.interval)
	return i, nil
}

// writeFile replaces a file as a whole: a reader sees the old content or the new one, also after a
// power failure.
func writeFile(path string, b []byte, mode fs.FileMode) error {
	return placeFile(path, b, mode, os.Rename)
}

// createFile makes a file with mode 0600 as a whole, unless it exists.
func createFile(path string, b []byte) error {
	return placeFile(path, b, 0o600, os.Link)
}

// placeFile writes a file beside path, and lets place give it its name when it is on the disk.
func placeFile(path string, b []byte, mode fs.FileMode, place func(from, to string) error) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".tmp-") // mode 0600
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	defer os.Remove(f.Name()) // nothing is there after a rename
	_, err = f.Write(b)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = place(f.Name(), path)
	}
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// blocks splits a PEM file. A block that is not whole, such as the last one of a file that is being
// written, is an error.
func blocks(path string, b []byte) ([]*pem.Block, error) {
	want := strings.Count(string(b), "-----BEGIN ")
	var out []*pem.Block
	for {
		p, rest := pem.Decode(b)
		if p == nil {
			break
		}
		out = append(out, p)
		b = rest
	}
	if len(out) != want || want == 0 {
		return nil, fmt.Errorf("identity: %s: %d of %d PEM blocks can be read: %w", path, len(out), want,
			ErrCredentials)
	}
	return out, nil
}

// certificates are those of a PEM file, in order. Keys are skipped.
func certificates(path string, b []byte) ([]*x509.Certificate, error) {
	bs, err := blocks(path, b)
	if err != nil {
		return nil, err
	}
	var out []*x509.Certificate
	for k, p := range bs {
		if p.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(p.Bytes)
		if err != nil {
			return nil, fmt.Errorf("identity: %s: block %d: %w: %w", path, k+1, err, ErrCredentials)
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("identity: %s holds no certificate: %w", path, ErrCredentials)
	}
	return out, nil
}

// parseCredentials makes credentials from the content of files.
func parseCredentials(certPath, keyPath, caPath string, cert, key, ca []byte) (Credentials, error) {
	var c Credentials
	roots, err := certificates(caPath, ca)
	if err != nil {
		return c, err
	}
	if _, err := certificates(certPath, cert); err != nil {
		return c, err
	}
	if _, err := blocks(keyPath, key); err != nil {
		return c, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		where := certPath
		if keyPath != certPath {
			where += " and " + keyPath
		}
		return c, fmt.Errorf("identity: %s: %w: %w", where, err, ErrCredentials)
	}
	return Credentials{Certificate: pair, Roots: roots}, nil
}

// encodeCertificates writes certificates as PEM.
func encodeCertificates(cs ...*x509.Certificate) []byte {
	var out []byte
	for _, c := range cs {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return out
}

// encodeNode writes a certificate chain and its key as PEM.
func encodeNode(c tls.Certificate) ([]byte, error) {
	var out []byte
	for _, der := range c.Certificate {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	key, ok := c.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("identity: a key of type %T cannot be written: %w", c.PrivateKey, ErrCredentials)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("identity: the key: %w", err)
	}
	return append(out, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})...), nil
}

// watch knows the files of an identity and when they were looked at.
type watch struct {
	interval           int64        // between looks, in nanoseconds
	next               atomic.Int64 // when to look again, in nanoseconds of the identity's clock
	turn               sync.Mutex   // held while a goroutine reads; guards the rest
	credentials, rules group
	denials            group // the directory's own file of rules, where rules are those of another one
	hadRules           bool  // there has been a file of rules
}

// group are files that only make sense together.
type group struct {
	files  []*file
	sum    [sha256.Size]byte // of the content that was last tried, good or bad
	tried  bool
	failed atomic.Pointer[error] // why they cannot be used at the moment
}

// failure is why a group of files cannot be used at the moment.
func (g *group) failure() error {
	if err := g.failed.Load(); err != nil {
		return *err
	}
	return nil
}

type file struct {
	path             string
	secret, optional bool
	stamp            fs.FileInfo // nil: did not exist
	data             []byte      // content while it is parsed
}

// stableAge is how old a file must be for its time stamp to prove that it is unchanged: a write
// within one tick of the file system's clock after a read does not change the stamp.
const stableAge = 2 * time.Second

// changed looks at the stamps of a group.
func (g *group) changed() bool {
	if !g.tried {
		return true
	}
	for _, f := range g.files {
		fi, err := os.Stat(f.path)
		if err != nil {
			if f.stamp != nil || !f.optional {
				return true
			}
			continue
		}
		if f.stamp == nil || !os.SameFile(fi, f.stamp) || !fi.ModTime().Equal(f.stamp.ModTime()) ||
			fi.Size() != f.stamp.Size() || fi.Mode() != f.stamp.Mode() ||
			sys.Identity(fi).UID != sys.Identity(f.stamp).UID || sys.Identity(fi).GID != sys.Identity(f.stamp).GID {
			return true
		}
		if time.Since(fi.ModTime()) < stableAge {
			return true
		}
	}
	return false
}

// read reads all files of a group and reports whether their content is new.
func (g *group) read() (fresh bool, err error) {
	h := sha256.New()
	for _, f := range g.files {
		f.data = nil
		var e error
		f.stamp, e = os.Stat(f.path) // before reading: a write in between shows at the next look
		if f.optional && errors.Is(e, fs.ErrNotExist) {
			e = nil
		} else {
			f.data, e = readFile(f.path, f.secret)
		}
		fmt.Fprintln(h, len(f.data), f.data != nil, e)
		h.Write(f.data)
		err = errors.Join(err, e)
	}
	sum := [sha256.Size]byte(h.Sum(nil))
	fresh = !g.tried || sum != g.sum
	g.sum, g.tried = sum, true
	return fresh, err
}

// forget drops the content, which may hold a key.
func (g *group) forget() {
	for _, f := range g.files {
		clear(f.data)
		f.data = nil
	}
}

// loadCredentials reads and checks the credentials.
func (w *watch) loadCredentials(now time.Time) (*state, error) {
	defer w.credentials.forget()
	if _, err := w.credentials.read(); err != nil {
		return nil, err
	}
	return w.parseCredentials(now)
}

func (w *watch) parseCredentials(now time.Time) (*state, error) {
	fs := w.credentials.files
	key := fs[0]
	if len(fs) == 3 {
		key = fs[2]
	}
	c, err := parseCredentials(fs[0].path, key.path, fs[1].path, fs[0].data, key.data, fs[1].data)
	if err != nil {
		return nil, err
	}
	s, err := newState(c, now)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", fs[0].path, err)
	}
	return s, nil
}

// loadRules reads the rules; nil without an error when there is no file.
func (g *group) loadRules() (*Rules, error) {
	defer g.forget()
	if _, err := g.read(); err != nil {
		return nil, err
	}
	return g.parseRules()
}

func (g *group) parseRules() (*Rules, error) {
	if len(g.files) == 0 || g.files[0].data == nil {
		return nil, nil
	}
	return parseRules(g.files[0].path, g.files[0].data)
}
