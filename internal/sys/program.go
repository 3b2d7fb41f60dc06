package sys

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// Program finds a program by name, also in the directories that hold programs for root. The error
// names the Debian package that brings it.
func Program(name, pkg string) (string, error) {
	p, err := exec.LookPath(name)
	if err == nil {
		return filepath.Abs(p)
	}
	if !strings.Contains(name, "/") && errors.Is(err, exec.ErrNotFound) {
		for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
			if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
				return p, nil
			}
		}
	}
	return "", fmt.Errorf("%w; on Debian: apt-get install %s", err, pkg)
}
