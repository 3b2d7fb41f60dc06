package guest

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// A moduleTree finds kernel modules and what they depend on. It reads that from the modules
// themselves (section .modinfo), since packages come without the modules.dep that depmod would
// write at installation.
type moduleTree struct {
	dir     string
	files   map[string]string // name of a module: its file
	builtin map[string]bool
}

// A module is one to load.
type module struct {
	name  string
	image []byte // unpacked
}

// moduleName is the name of the module in a file such as kernel/net/sched/sch_fq.ko.xz.
func moduleName(file string) (string, bool) {
	base := filepath.Base(file)
	for _, ext := range []string{"", ".xz", ".zst", ".gz"} {
		if name, ok := strings.CutSuffix(base, ".ko"+ext); ok {
			return underscores(name), true
		}
	}
	return "", false
}

// underscores writes a module's name as the kernel does.
func underscores(name string) string { return strings.ReplaceAll(name, "-", "_") }

func readModules(dir string) (*moduleTree, error) {
	t := &moduleTree{dir: dir, files: map[string]string{}, builtin: map[string]bool{}}
	err := filepath.WalkDir(filepath.Join(dir, "kernel"), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if name, ok := moduleName(p); ok {
			t.files[name] = p
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("guest: modules: %w", err)
	}
	list, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("guest: modules: %w", err)
	}
	for line := range strings.Lines(string(list)) {
		if name, ok := moduleName(strings.TrimSpace(line)); ok {
			t.builtin[name] = true
		}
	}
	return t, nil
}

// resolve returns the named modules and all that they depend on, each once and after those it
// needs.
func (t *moduleTree) resolve(ctx context.Context, names ...string) ([]module, error) {
	var out []module
	state := map[string]int{} // 1 while those it needs are looked for, 2 when it is in out
	var visit func(name, by string) error
	visit = func(name, by string) error {
		name = underscores(name)
		if t.builtin[name] || state[name] == 2 {
			return nil
		}
		if state[name] == 1 {
			return fmt.Errorf("guest: module %s depends on itself by way of %s", name, by)
		}
		state[name] = 1
		file, ok := t.files[name]
		if !ok {
			if by != "" {
				by = " (needed by " + by + ")"
			}
			return fmt.Errorf("guest: no module %s%s below %s; if the kernel has it, its directory is missing in "+
				"keptModules", name, by, t.dir)
		}
		b, err := os.ReadFile(file)
		if err == nil && !bytes.HasPrefix(b, []byte("\x7fELF")) {
			b, err = decompress(ctx, b)
		}
		if err != nil {
			return fmt.Errorf("guest: module %s: %w", name, err)
		}
		needs, err := dependencies(b)
		if err != nil {
			return fmt.Errorf("guest: module %s: %w", name, err)
		}
		for _, n := range needs {
			if err := visit(n, name); err != nil {
				return err
			}
		}
		state[name] = 2
		out = append(out, module{name, b})
		return nil
	}
	for _, n := range names {
		if err := visit(n, ""); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// dependencies reads from a module which others it needs.
func dependencies(b []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	sec := f.Section(".modinfo")
	if sec == nil {
		return nil, errors.New("has no section .modinfo")
	}
	info, err := sec.Data()
	if err != nil {
		return nil, err
	}
	for field := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := bytes.CutPrefix(field, []byte("depends=")); ok && len(list) > 0 {
			return strings.Split(string(list), ","), nil
		}
	}
	return nil, nil
}
