package peers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Python is an interpreter that has a module.
type Python struct {
	Path    string
	Module  string
	Version string // of the module
}

// FindPython finds an interpreter that can import a module. There may be several, and the first on
// PATH need not be the one of the system, for which distributions package their modules, so that
// one is asked first. The error wraps [ErrAbsent] and holds what each one answered.
func FindPython(ctx context.Context, module string) (*Python, error) {
	var tried []string
	var broken error
	seen := map[string]bool{}
	for _, dir := range append([]string{"/usr/bin"},
		append(filepath.SplitList(os.Getenv("PATH")), "/usr/local/bin")...) {
		path := filepath.Join(dir, "python3")
		if real, err := filepath.EvalSymlinks(path); err != nil || seen[real] {
			continue
		} else {
			seen[real] = true
		}
		p := &Python{Path: path, Module: module}
		err := p.Run(ctx, "import json, sys\nm = __import__(sys.argv[1])\njson.dump(str(m.__version__), sys.stdout)",
			nil, &p.Version, module)
		if err == nil {
			return p, nil
		}
		if ctx.Err() != nil {
			return nil, err
		}
		// A module that is there and cannot be imported is broken, not absent.
		if said := err.Error(); strings.Contains(said, "Traceback") && !strings.Contains(said, "No module named") {
			broken = errors.Join(broken, err)
		}
		tried = append(tried, err.Error())
	}
	if broken != nil {
		return nil, broken
	}
	return nil, fmt.Errorf("peers: a python3 with %s is %w; on Debian: apt-get install python3-%s, or run "+
		"scripts/deps.sh; tried: %s",
		module, ErrAbsent, module, strings.Join(tried, "\n"))
}

// moduleVersion is what the module of the peer says of itself.
func moduleVersion(ctx context.Context, p *Peer) (string, error) {
	py, err := FindPython(ctx, p.Modules[0])
	if err != nil {
		return "", err
	}
	return py.Version, nil
}

// Run runs a script. It can read in as JSON from its standard input (in may be nil) and the
// arguments from sys.argv[1:], and prints one JSON value, which is decoded into out. Warnings are
// errors.
func (p *Python) Run(ctx context.Context, script string, in, out any, args ...string) error {
	var stdin bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&stdin).Encode(in); err != nil {
			return fmt.Errorf("peers: %w", err)
		}
	}
	printed, err := command{
		args:  append([]string{p.Path, "-W", "error", "-c", script}, args...),
		env:   []string{"PYTHONDONTWRITEBYTECODE=1"},
		stdin: &stdin,
	}.run(ctx)
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(printed, out); err != nil {
		return fmt.Errorf("peers: %s: %w: %w: %s", p.Path, ErrOutput, err, tail(printed))
	}
	return nil
}
