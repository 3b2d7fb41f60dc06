package ocl

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	testpeers "github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/internal/peers"
)

// TestNumbers compares every number of the standard in this package with the headers of OpenCL.
func TestNumbers(t *testing.T) {
	define := regexp.MustCompile(`(?m)^#define\s+(CL_\w+)\s+(?:\(?(-?(?:0x)?[0-9A-Fa-f]+)\)?|\(1 << (\d+)\))\s*(?:/\*.*)?$`)
	have := map[string]int{}
	for _, name := range []string{"cl.h", "cl_ext.h"} {
		b, err := os.ReadFile(filepath.Join("/usr/include/CL", name))
		if err != nil {
			testenv.Missing(t, "the headers of OpenCL (apt-get install opencl-c-headers)", err)
		}
		for _, m := range define.FindAllStringSubmatch(string(b), -1) {
			text := m[2]
			if m[3] != "" {
				n, _ := strconv.Atoi(m[3])
				text = strconv.Itoa(1 << n)
			}
			if n, err := strconv.ParseInt(text, 0, 64); err == nil {
				have[m[1]] = int(n)
			}
		}
	}
	for code, name := range codes {
		if n, ok := have[name]; !ok || n != code {
			t.Errorf("%s is %d (%v) in the headers, %d here", name, n, ok, code)
		}
	}
	for name, n := range map[string]int{
		"CL_PLATFORM_VERSION": int(PlatformVersion), "CL_PLATFORM_NAME": int(PlatformName),
		"CL_DEVICE_TYPE": int(DeviceType), "CL_DEVICE_MAX_COMPUTE_UNITS": int(DeviceUnits),
		"CL_DEVICE_MAX_WORK_GROUP_SIZE": int(DeviceMaxGroup), "CL_DEVICE_MAX_MEM_ALLOC_SIZE": int(DeviceMaxAlloc),
		"CL_DEVICE_MEM_BASE_ADDR_ALIGN": int(DeviceBaseAlign),
		"CL_DEVICE_GLOBAL_MEM_SIZE":     int(DeviceMemory), "CL_DEVICE_ENDIAN_LITTLE": int(DeviceLittleEndian),
		"CL_DEVICE_AVAILABLE":          int(DeviceAvailable),
		"CL_DEVICE_COMPILER_AVAILABLE": int(DeviceCompilerAvailable), "CL_DEVICE_NAME": int(DeviceName),
		"CL_DRIVER_VERSION": int(DriverVersion),
		"CL_DEVICE_VERSION": int(DeviceVersion), "CL_DEVICE_EXTENSIONS": int(DeviceExtensions),
		"CL_DEVICE_SVM_CAPABILITIES": int(DeviceSVM),
		"CL_DEVICE_PCI_BUS_INFO_KHR": int(DevicePCIKHR), // those of NVIDIA are in headers of its own only
		"CL_DEVICE_TYPE_CPU":         TypeCPU, "CL_DEVICE_TYPE_GPU": TypeGPU,
		"CL_DEVICE_TYPE_ACCELERATOR":        TypeAccelerator,
		"CL_DEVICE_SVM_COARSE_GRAIN_BUFFER": SVMCoarse, "CL_DEVICE_SVM_FINE_GRAIN_BUFFER": SVMFine,
		"CL_DEVICE_SVM_FINE_GRAIN_SYSTEM": SVMSystem, "CL_DEVICE_SVM_ATOMICS": SVMAtomics,
		"CL_MEM_READ_WRITE": MemReadWrite, "CL_MEM_ALLOC_HOST_PTR": memAllocHost,
		"CL_MEM_SVM_FINE_GRAIN_BUFFER": memSVMFine, "CL_MEM_SVM_ATOMICS": memSVMAtomics,
		// Those that are written in the functions that use them.
		"CL_QUEUE_PROPERTIES": 0x1093, "CL_QUEUE_PROFILING_ENABLE": 1 << 1, "CL_BUFFER_CREATE_TYPE_REGION": 0x1220,
		"CL_PROGRAM_BUILD_LOG": 0x1183, "CL_KERNEL_NUM_ARGS": 0x1191,
		"CL_KERNEL_WORK_GROUP_SIZE": 0x11b0, "CL_EVENT_COMMAND_EXECUTION_STATUS": 0x11d3,
		"CL_PROFILING_COMMAND_END": 0x1283, "CL_MAP_READ": 1 << 0, "CL_MAP_WRITE": 1 << 1,
	} {
		if got, ok := have[name]; !ok || got != n {
			t.Errorf("%s is %#x (%v) in the headers, %#x here", name, got, ok, n)
		}
	}
	for i, name := range names {
		if !strings.HasPrefix(name, "cl") {
			t.Errorf("function %d has no name", i)
		}
	}
}

func TestLoad(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "none.so"))
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), Install) {
		t.Errorf("a library that is not there: %v", err)
	}
	_, err = Load("libc.so.6")
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "clGetPlatformIDs") {
		t.Errorf("a library that is not OpenCL: %v; expected it to name what is missing", err)
	}
}

// TestDevices compares what this package reads with what clinfo reads.
func TestDevices(t *testing.T) {
	platform := testpeers.PoCL(t)
	theirs, err := peers.OpenCLDevices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l, err := Load("")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	platforms, err := l.Platforms()
	if err != nil {
		t.Fatal(err)
	}
	var ours []peers.OpenCLDevice
	for _, p := range platforms {
		var d peers.OpenCLDevice
		name, err1 := l.PlatformText(p, PlatformName)
		version, err2 := l.PlatformText(p, PlatformVersion)
		ids, err3 := l.Devices(p)
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			d.Platform, d.PlatformVersion = name, version
			var units uint64
			var errs [4]error
			d.Name, errs[0] = l.DeviceText(id, DeviceName)
			d.Driver, errs[1] = l.DeviceText(id, DriverVersion)
			d.Memory, errs[2] = l.DeviceWord(id, DeviceMemory)
			units, errs[3] = l.DeviceWord(id, DeviceUnits)
			d.ComputeUnits = int(units)
			if err := errors.Join(errs[:]...); err != nil {
				t.Fatal(err)
			}
			ours = append(ours, d)
			if _, err := l.DeviceWord(id, 0x7fff); err == nil {
				t.Error("a device knows a parameter that there is not")
			} else if e := (*Error)(nil); !errors.As(err, &e) || e.Name() != "CL_INVALID_VALUE" ||
				e.Op != "clGetDeviceInfo" {
				t.Errorf("a parameter that there is not: %v", err)
			}
		}
	}
	if len(ours) != len(theirs) {
		t.Fatalf("%d devices, clinfo has %d", len(ours), len(theirs))
	}
	found := false
	for i := range ours {
		found = found || ours[i].Platform == platform
		// PoCL's memory is what the machine has free, and changes.
		if a, b := ours[i], theirs[i]; a.Name != b.Name || a.Platform != b.Platform ||
			strings.TrimSpace(a.PlatformVersion) != strings.TrimSpace(b.PlatformVersion) || a.Driver != b.Driver ||
			a.ComputeUnits != b.ComputeUnits || a.Memory == 0 {
			t.Errorf("device %d is %+v, clinfo says %+v", i, a, b)
		}
	}
	if !found {
		t.Errorf("no device on the platform %q", platform)
	}
}
