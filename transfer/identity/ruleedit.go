package identity

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/internal/sys"
)

// lockFile is locked while the file of rules is changed.
const lockFile = ".policy.lock"

// Allow gives rights to the names that a pattern matches, in the file of rules of a directory. It
// replaces the rights in the rule of exactly this pattern, or adds a rule: above the first that
// matches all these names, else behind the others. The rest of the file stays as it is, and a file
// is made where there is none. Rights of 0 are written down as "none", so that no later rule gives
// any. Names that are denied are refused with an error that wraps [ErrPolicy]. Programs that run
// take the change up by themselves.
func Allow(dir, pattern string, rights Rights) (*Rules, error) {
	if what := checkPattern(pattern); what != "" {
		return nil, fmt.Errorf("identity: %s: %w", what, ErrPolicy)
	}
	return editRules(dir, func(path string, r *Rules, text []byte) ([]byte, error) {
		if r != nil {
			if k := slices.IndexFunc(r.names, func(n string) bool { return covers(n, pattern) }); k >= 0 {
				return nil, fmt.Errorf("identity: %q is denied by %s; to admit it again, run first: penstock pair "+
					"undeny "+
					"'%s' --dir %s: %w", pattern, path, r.names[k], dir, ErrPolicy)
			}
		}
		return withAllow(text, pattern, rights), nil
	})
}

// withAllow is a file of rules with the rights of a pattern replaced, or with a rule more: above
// the first allow that would match first, behind the last one, or above the default and the comment
// before that.
func withAllow(text []byte, pattern string, rights Rights) []byte {
	lines := strings.SplitAfter(string(text), "\n")
	above, after, before := -1, -1, -1
	for k, line := range lines {
		code, _, _ := strings.Cut(line, "#")
		switch w := strings.Fields(code); {
		case len(w) == 3 && w[0] == "allow" && w[1] == pattern:
			at := strings.LastIndex(code, w[2])
			lines[k] = line[:at] + rights.String() + line[at+len(w[2]):]
			return []byte(strings.Join(lines, ""))
		case len(w) > 0 && w[0] == "allow":
			if after = k; above < 0 && covers(w[1], pattern) {
				above = k
			}
		case len(w) > 0 && w[0] == "default":
			before = k
		}
	}
	at := len(lines)
	switch {
	case above >= 0:
		at = above
	case after >= 0:
		at = after + 1
	case before >= 0:
		for at = before; at > 0 && strings.HasPrefix(strings.TrimSpace(lines[at-1]), "#"); at-- {
		}
	}
	lines = slices.Insert(lines, at, fmt.Sprintf("allow %s %v\n", pattern, rights))
	return []byte(strings.Join(lines, ""))
}

// dirRules are the rules of a directory; nil: there is no file of rules.
func dirRules(dir string) (*Rules, error) {
	g := group{files: []*file{{path: filepath.Join(dir, PolicyFile), optional: true}}}
	return g.loadRules()
}

// Introduce gives a node that this one was paired with its rights, as [Allow] does, and returns the
// rule that holds for it. With keep, a rule that matches the name already stays: a node that is
// renewed keeps what it may do.
func Introduce(dir, name string, rights Rights, keep bool) (Rule, error) {
	if err := CheckName(name); err != nil {
		return Rule{}, err
	}
	have, err := dirRules(dir)
	if err != nil {
		return Rule{}, err
	}
	rule, ok := have.Rule(name)
	if ok && (keep || rule.Rights == rights) {
		return rule, nil
	}
	if ok && rule.Pattern != name {
		return rule, fmt.Errorf("identity: %q: the rule \"allow %s %v\" matches it: %w", name, rule.Pattern,
			rule.Rights,
			ErrPolicy)
	}
	_, err = Allow(dir, name, rights)
	return Rule{name, rights}, err
}

// Deny adds a line to the file of rules of a directory that denies names, or the serial number of
// one certificate; exactly one of pattern and serial is given. The rest of the file stays as it is;
// a file is made where there is none. Programs that run take it up by themselves.
func Deny(dir, pattern, serial string) (*Rules, error) {
	line, err := denial(pattern, serial)
	if err != nil {
		return nil, err
	}
	have, err := Inspect(dir)
	if err != nil {
		return nil, err
	}
	if pattern != "" && match(pattern, have.Self.Name) {
		return nil, fmt.Errorf("identity: %q is this node itself: %w", pattern, ErrPolicy)
	}
	return editRules(dir, func(_ string, _ *Rules, text []byte) ([]byte, error) {
		return append(text, line+"\n"...), nil
	})
}

// Undeny removes the denial of exactly this pattern or serial number from the file of rules of a
// directory, as [Deny] wrote it.
func Undeny(dir, pattern, serial string) (*Rules, error) {
	line, err := denial(pattern, serial)
	if err != nil {
		return nil, err
	}
	if _, err := Inspect(dir); err != nil {
		return nil, err
	}
	return editRules(dir, func(path string, _ *Rules, text []byte) ([]byte, error) {
		lines := strings.SplitAfter(string(text), "\n")
		left := slices.DeleteFunc(slices.Clone(lines), func(l string) bool {
			code, _, _ := strings.Cut(l, "#")
			return strings.Join(strings.Fields(code), " ") == line
		})
		if len(left) == len(lines) {
			return nil, fmt.Errorf("identity: %s has no line \"%s\": %w", path, line, ErrPolicy)
		}
		return []byte(strings.Join(left, "")), nil
	})
}

// denial is the line that denies a pattern or a serial number; exactly one of them is given.
func denial(pattern, serial string) (string, error) {
	line := "deny name " + pattern
	if serial != "" {
		line = "deny serial " + serial
	}
	if (pattern == "") == (serial == "") || len(strings.Fields(line)) != 3 || strings.ContainsAny(line, "#\r\n") {
		return "", fmt.Errorf("identity: expected a name or a serial number: %w", ErrPolicy)
	}
	return line, nil
}

// editRules replaces the file of rules of a directory by what edit makes of it, while no other
// program does so. The text that edit gets ends with a line feed, unless it is empty.
func editRules(dir string, edit func(path string, have *Rules, text []byte) ([]byte, error)) (*Rules, error) {
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	// Not the directory itself: others may open and lock that, if its mode lets them read it.
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	defer lock.Close()
	if err := sys.FileLock(lock); err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	have, err := dirRules(dir)
	if err != nil {
		return nil, err
	}
	path, mode := filepath.Join(dir, PolicyFile), fs.FileMode(0o644)
	var text []byte
	if have != nil {
		if path, err = filepath.EvalSymlinks(path); err != nil { // of a link, the target changes
			return nil, fmt.Errorf("identity: %w", err)
		}
		if text, err = readFile(path, false); err != nil {
			return nil, err
		}
		if fi, err := os.Stat(path); err == nil {
			mode = fi.Mode().Perm()
		}
	}
	if len(text) > 0 && text[len(text)-1] != '\n' {
		text = append(text, '\n')
	}
	if text, err = edit(path, have, text); err != nil {
		return nil, err
	}
	r, err := ParseRules(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, writeFile(path, text, mode)
}
