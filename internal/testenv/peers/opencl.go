package peers

import (
	"bytes"
	"context"
	_ "embed" // the program that runs a kernel
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/penstock-io/penstock/internal/testenv"
)

// OpenCLDevice is a device that clinfo lists.
type OpenCLDevice struct {
	Platform        string // "Portable Computing Language"
	PlatformVersion string // "OpenCL 3.0 PoCL 3.1+debian ..."
	Name            string
	Driver          string // version
	Memory          uint64 // bytes of global memory
	ComputeUnits    int
}

// OpenCLDevices lists the devices of this machine.
func OpenCLDevices(ctx context.Context) (_ []OpenCLDevice, err error) {
	p, err := Get("pocl")
	if err != nil {
		return nil, err
	}
	bin, err := p.tool("clinfo")
	if err != nil {
		return nil, err
	}
	h, err := newHome("clinfo")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.remove()) }()
	out, err := command{args: []string{bin, "--json"}, home: h}.run(ctx)
	if err != nil {
		return nil, err
	}
	return parseOpenCL(out)
}

// PoCL is Need for tests that load OpenCL into their own process: what PoCL compiles there goes to the lab's cache and not to the user's. The machine may have other
// devices as well; those of PoCL are on the platform whose name is returned.
func PoCL(t testenv.TB) (platform string) {
	t.Helper()
	version, err := poclVersion()
	need(t, "pocl", version, err)
	dir, err := testenv.CacheDir()
	if err == nil {
		dir = filepath.Join(dir, "pocl")
		err = errors.Join(os.MkdirAll(dir, 0o755), os.Setenv("POCL_CACHE_DIR", dir))
	}
	if err != nil {
		t.Fatalf("peers: %v", err)
	}
	return "Portable Computing Language"
}

// poclVersion asks once: it is another process.
var poclVersion = sync.OnceValues(func() (string, error) {
	p, err := Get("pocl")
	if err != nil {
		return "", err
	}
	return p.Version(context.Background())
})

// parseOpenCL reads the JSON of clinfo. The devices of platform i are devices[i].
func parseOpenCL(out []byte) ([]OpenCLDevice, error) {
	var r struct {
		Platforms []struct {
			Name    string `json:"CL_PLATFORM_NAME"`
			Version string `json:"CL_PLATFORM_VERSION"`
		} `json:"platforms"`
		Devices []struct {
			Online []struct {
				Name   string `json:"CL_DEVICE_NAME"`
				Driver string `json:"CL_DRIVER_VERSION"`
				Memory uint64 `json:"CL_DEVICE_GLOBAL_MEM_SIZE"`
				Units  int    `json:"CL_DEVICE_MAX_COMPUTE_UNITS"`
			} `json:"online"`
		} `json:"devices"`
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return nil, fmt.Errorf("peers: clinfo: %w: %w: %s", ErrOutput, err, tail(out))
	}
	if len(r.Devices) > len(r.Platforms) {
		return nil, fmt.Errorf("peers: clinfo: %w: devices of %d platforms, but %d platforms", ErrOutput, len(r.Devices), len(r.Platforms))
	}
	var found []OpenCLDevice
	for i, d := range r.Devices {
		for _, x := range d.Online {
			if x.Name == "" {
				return nil, fmt.Errorf("peers: clinfo: %w: a device without a name", ErrOutput)
			}
			found = append(found, OpenCLDevice{r.Platforms[i].Name, r.Platforms[i].Version, x.Name, x.Driver, x.Memory, x.Units})
		}
	}
	return found, nil
}

// openCLVersion is the version of PoCL, as its platform reports it.
func openCLVersion(ctx context.Context, p *Peer) (string, error) {
	devices, err := OpenCLDevices(ctx)
	if err != nil {
		return "", err
	}
	for _, d := range devices {
		if _, v, ok := strings.Cut(d.PlatformVersion, "PoCL "); ok {
			v, _, _ = strings.Cut(v, " ")
			if _, err := os.Stat("/usr/include/CL/cl.h"); err != nil {
				return "", fmt.Errorf("peers: the headers of OpenCL are %w: %w; on Debian: %s", ErrAbsent, err, p.Install())
			}
			return v, nil
		}
	}
	return "", fmt.Errorf("peers: PoCL is %w: clinfo lists %d devices, none of PoCL; on Debian: %s", ErrAbsent, len(devices), p.Install())
}

//go:embed opencl/run.c
var openCLRun []byte

// OpenCL builds a kernel from OpenCL C and runs it on the first device of this machine, once for each element of in. It has
// the signature
//
//	kernel void NAME(global const uint *in, global uint *out)
//
// and what it wrote to out is returned. The C program that does it is compiled on first use.
func OpenCL(ctx context.Context, source, name string, in []uint32) (out []uint32, err error) {
	h, err := newHome("opencl")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.remove()) }()
	file, kernel := filepath.Join(h.dir, "run.c"), filepath.Join(h.dir, "kernel.cl")
	if err := errors.Join(os.WriteFile(file, openCLRun, 0o644), os.WriteFile(kernel, []byte(source), 0o644)); err != nil {
		return nil, fmt.Errorf("peers: %w", err)
	}
	bin, err := testenv.Compile("opencl-run", []string{file}, "-O1", "-Wall", "-Wno-deprecated-declarations", "-lOpenCL")
	if err != nil {
		return nil, fmt.Errorf("peers: %w", err)
	}
	var input bytes.Buffer
	if err := binary.Write(&input, binary.LittleEndian, in); err != nil {
		return nil, fmt.Errorf("peers: %w", err)
	}
	printed, err := command{args: []string{bin, kernel, name, strconv.Itoa(len(in))}, home: h, stdin: &input}.run(ctx)
	if err != nil {
		return nil, err
	}
	if len(printed) != 4*len(in) {
		return nil, fmt.Errorf("peers: opencl-run: %w: %d bytes for %d words", ErrOutput, len(printed), len(in))
	}
	out = make([]uint32, len(in))
	if err := binary.Read(bytes.NewReader(printed), binary.LittleEndian, out); err != nil {
		return nil, fmt.Errorf("peers: %w", err)
	}
	return out, nil
}
