package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// compiler is the C compiler with what it says of itself, asked once.
var compiler = sync.OnceValues(func() (c struct{ path, version string }, err error) {
	name := os.Getenv("CC")
	if name == "" {
		name = "gcc"
	}
	if c.path, err = Tool(name, "gcc libc6-dev"); err != nil {
		return c, err
	}
	out, err := exec.Command(c.path, "--version").Output()
	if err != nil {
		return c, fmt.Errorf("testenv: %s --version: %w", c.path, err)
	}
	c.version = string(out)
	return c, nil
})

// Compile builds C sources into a program, or into a shared library when a flag is -shared, and
// returns the path of the result in the cache. Flags are given to the compiler after the sources,
// so that libraries may be among them. The result is found again by the contents of the sources, of
// the headers beside them, the flags and the compiler's version. The compiler is $CC, or gcc.
func Compile(name string, sources []string, flags ...string) (string, error) {
	cc, err := compiler()
	if err != nil {
		return "", err
	}
	inputs := slices.Clone(sources)
	for _, s := range sources {
		headers, err := filepath.Glob(filepath.Join(filepath.Dir(s), "*.h"))
		if err != nil {
			return "", fmt.Errorf("testenv: %w", err)
		}
		inputs = append(inputs, headers...)
	}
	slices.Sort(inputs)
	content, err := HashFiles(slices.Compact(inputs)...)
	if err != nil {
		return "", err
	}
	key := name + "-" + Hash(content, cc.version, strings.Join(flags, "\x00"))
	if slices.Contains(flags, "-shared") {
		key += ".so"
		flags = append(slices.Clone(flags), "-fPIC")
	}
	return Cached(key, func(tmp string) error {
		args := append([]string{"-o", tmp}, sources...)
		out, err := exec.Command(cc.path, append(args, flags...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("testenv: %s: %w\n%s", name, err, out)
		}
		return nil
	})
}
