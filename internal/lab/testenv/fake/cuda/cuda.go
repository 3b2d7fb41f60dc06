package cuda

import (
	"embed"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

//go:embed src check
var files embed.FS

// warnings hold for every C file here: the fake is the judge of other code and has none of its own.
var warnings = []string{"-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"}

// Sources is the directory, in the lab's cache, with the C files of this package: src with the
// fake, fake.h (what kernels include) and cuda_api.h; check with the check program.
func Sources() (string, error) { return testenv.Unpacked("fake-cuda-src", files) }

// Build compiles the fake driver, once per content, and returns the path of the shared library.
// Extra flags go to the compiler: -fsanitize=thread, say. The error of a missing compiler names the
// package that brings it.
func Build(flags ...string) (string, error) {
	dir, err := Sources()
	if err != nil {
		return "", err
	}
	sources, err := filepath.Glob(filepath.Join(dir, "src", "*.c"))
	if err != nil {
		return "", fmt.Errorf("cuda: %w", err)
	}
	// The threads of streams run this code until the process ends, so the library is never
	// unloaded.
	own := []string{"-shared", "-fvisibility=hidden", "-Wl,-z,nodelete", "-Wl,-soname,libcuda.so.1", "-ldl"}
	return testenv.Compile("libpenstock-fake-cuda", sources, slices.Concat(warnings, own, flags)...)
}

// Kernels compiles C files into the library that $PENSTOCK_FAKE_CUDA_KERNELS names: an exported
// function `void NAME(const penstock_fake_cuda_launch *)` is the body of the kernel NAME. The files
// may include "fake.h".
func Kernels(sources []string, flags ...string) (string, error) {
	dir, err := Sources()
	if err != nil {
		return "", err
	}
	own := []string{"-shared", "-I" + filepath.Join(dir, "src")}
	return testenv.Compile("fake-cuda-kernels", sources, slices.Concat(warnings, own, flags)...)
}

// Check compiles the check program and the bodies of its kernels. The program needs nothing but
// libc: it can be carried to a machine with a GPU and run there as `check libcuda.so.1`.
func Check(flags ...string) (program, kernels string, err error) {
	dir, err := Sources()
	if err != nil {
		return "", "", err
	}
	all, err := filepath.Glob(filepath.Join(dir, "check", "*.c"))
	if err != nil {
		return "", "", fmt.Errorf("cuda: %w", err)
	}
	var sources, bodies []string
	for _, s := range all {
		switch name := filepath.Base(s); {
		case name == "kernels.c":
			bodies = append(bodies, s)
		case !strings.HasPrefix(name, "abi"):
			sources = append(sources, s)
		}
	}
	own := []string{"-I" + filepath.Join(dir, "src"), "-ldl"}
	program, err = testenv.Compile("fake-cuda-check", sources, slices.Concat(warnings, own, flags)...)
	if err != nil {
		return "", "", err
	}
	kernels, err = Kernels(bodies, flags...)
	return program, kernels, err
}
