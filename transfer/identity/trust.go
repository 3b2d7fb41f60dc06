package identity

import (
	"crypto/x509"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Trust adds the root certificates of a PEM file to the bundle of a directory, beside those that
// are there. Programs that run take it up by themselves. That is how a fleet begins to move from
// one authority to the next.
func Trust(dir string, bundle []byte) (Contents, error) {
	cs, err := certificates("the file", bundle)
	if err != nil {
		return Contents{}, err
	}
	have, err := Inspect(dir)
	if err != nil {
		return Contents{}, err
	}
	roots := have.Roots
	for k, c := range cs {
		if !c.IsCA || !c.BasicConstraintsValid {
			return Contents{}, fmt.Errorf("identity: certificate %d (%s) is not that of an authority: %w", k+1,
				clip(c.Subject.String()), ErrCredentials)
		}
		if !slices.ContainsFunc(roots, c.Equal) {
			roots = append(roots, c)
		}
	}
	if len(roots) > maxRoots {
		return Contents{}, fmt.Errorf("identity: %d roots, expected at most %d: %w", len(roots), maxRoots,
			ErrCredentials)
	}
	if err := writeFile(filepath.Join(dir, CAFile), encodeCertificates(roots...), 0o644); err != nil {
		return Contents{}, err
	}
	return Inspect(dir)
}

// Distrust removes a root certificate from the bundle of a directory: the one whose [Fingerprint]
// begins with the given digits, of which there must be one, and at least 8 of them. It refuses to
// remove the root of the node's own certificate, and that of an authority in the same directory,
// with [ErrCredentials].
func Distrust(dir, fingerprint string) (Contents, error) {
	have, err := Inspect(dir)
	if err != nil {
		return Contents{}, err
	}
	if len(fingerprint) < 8 {
		return Contents{}, fmt.Errorf("identity: fingerprint %q: expected at least 8 digits of it: %w",
			clip(fingerprint), ErrCredentials)
	}
	var keep []*x509.Certificate
	gone := ""
	for _, r := range have.Roots {
		f := Fingerprint(r)
		if !strings.HasPrefix(f, fingerprint) {
			keep = append(keep, r)
			continue
		}
		switch {
		case gone != "":
			return Contents{}, fmt.Errorf("identity: two roots have a fingerprint that begins with %s: %w", fingerprint,
				ErrCredentials)
		case f == have.Issuer:
			return Contents{}, fmt.Errorf("identity: root %s issued this node's own certificate; give the node one "+
				"of another authority first: %w", f, ErrCredentials)
		case have.Authority != nil && have.Authority.Equal(r):
			return Contents{}, fmt.Errorf("identity: root %s is that of the authority in %s: %w", f, dir,
				ErrCredentials)
		}
		gone = f
	}
	if gone == "" {
		return Contents{}, fmt.Errorf("identity: no root has a fingerprint that begins with %s: %w", clip(fingerprint),
			ErrCredentials)
	}
	if err := writeFile(filepath.Join(dir, CAFile), encodeCertificates(keep...), 0o644); err != nil {
		return Contents{}, err
	}
	return Inspect(dir)
}
