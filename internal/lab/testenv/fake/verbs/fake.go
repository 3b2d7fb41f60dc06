package verbs

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

//go:embed src check scripted
var files embed.FS

// ScriptEnv is the environment variable with the script that a process starts with: its lines,
// separated by newlines or semicolons, or @ and the path of a file.
const ScriptEnv = "PENSTOCK_FAKE_VERBS"

// ErrMissing is wrapped when this machine lacks what the fake is compiled with: a C compiler or the
// headers of libibverbs.
var ErrMissing = errors.New("missing on this machine")

// warnings hold for every C file here: the fake judges other code, so it must have no fault of its
// own.
var warnings = []string{"-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"}

// sources is the directory, in the lab's cache, with the C files of this package.
func sources() (string, error) { return testenv.Unpacked("fake-verbs-src", files) }

// headers tells a machine that cannot compile verbs at all from a fault in the sources here.
func headers(dir string) error {
	_, err := testenv.Compile("fake-verbs-headers", []string{filepath.Join(dir, "src", "headers", "have.c")})
	if err != nil {
		return fmt.Errorf("verbs: %w: a C compiler and <infiniband/verbs.h>; on Debian: apt-get install gcc "+
			"libc6-dev libibverbs-dev\n%w",
			ErrMissing, err)
	}
	return nil
}

// compile builds the C files below part of the sources.
func compile(name, part string, flags ...string) (string, error) {
	dir, err := sources()
	if err != nil {
		return "", err
	}
	if err := headers(dir); err != nil {
		return "", err
	}
	in, err := filepath.Glob(filepath.Join(dir, part, "*.c"))
	if err != nil || len(in) == 0 {
		return "", fmt.Errorf("verbs: no sources in %s: %w", filepath.Join(dir, part), err)
	}
	switch part {
	case "scripted": // these checks run under the conformance program's main
		in = append(in, filepath.Join(dir, "check", "check_main.c"))
		flags = append(slices.Clone(flags), "-I"+filepath.Join(dir, "check"))
	case "src":
		flags = append(slices.Clone(flags), "-shared", "-fvisibility=hidden", "-Wl,-soname,libibverbs.so.1",
			"-Wl,-z,defs",
			"-Wl,--version-script="+filepath.Join(dir, "src", "verbs_fake.map"))
	}
	return testenv.Compile(name, in, slices.Concat(warnings, flags)...)
}

// Build compiles the fake, once per content, and returns the path of the shared library, for
// dlopen. Extra flags go to the compiler, such as -fsanitize=address. An error that wraps
// [ErrMissing] names the packages to install.
func Build(flags ...string) (path string, err error) {
	return compile("libpenstock-fake-ibverbs", "src", flags...)
}

// Dir returns a directory in which the library that Build makes of the same flags is called
// libibverbs.so.1. A program with this directory as LD_LIBRARY_PATH runs on the fake.
func Dir(flags ...string) (string, error) {
	lib, err := Build(flags...)
	if err != nil {
		return "", err
	}
	return testenv.Cached("fake-verbs-dir-"+testenv.Hash(lib), func(tmp string) error {
		if err := os.Mkdir(tmp, 0o755); err != nil {
			return err
		}
		return os.Symlink(lib, filepath.Join(tmp, "libibverbs.so.1"))
	})
}

// Env returns the environment of this process, changed so that a program which is linked with
// libibverbs runs on the fake in the directory dir, with a script ("" is none).
func Env(dir, script string) []string {
	env := slices.DeleteFunc(os.Environ(), func(s string) bool {
		return len(s) > len(ScriptEnv) && s[:len(ScriptEnv)+1] == ScriptEnv+"="
	})
	path := dir
	if old := os.Getenv("LD_LIBRARY_PATH"); old != "" {
		path += ":" + old
	}
	return append(env, "LD_LIBRARY_PATH="+path, ScriptEnv+"="+script)
}

// Check compiles the conformance program: it knows libibverbs and not the provider, so that it runs
// on the fake, on Soft-RoCE and on hardware. Run without arguments it takes the first device;
// `check DEVICE NAME...` takes one, and some checks. It prints a line per check, and ends with
// status 0 when none failed.
func Check(flags ...string) (program string, err error) {
	return compile("fake-verbs-check", "check", append(slices.Clone(flags), "-libverbs")...)
}

// scripted compiles the checks of the script, which are linked with the fake itself.
func scripted(flags ...string) (program string, err error) {
	lib, err := Build(flags...)
	if err != nil {
		return "", err
	}
	return compile("fake-verbs-scripted", "scripted", append(slices.Clone(flags), lib)...)
}
