package cards

import (
	"cmp"

	"github.com/penstock-io/penstock/host"
)

// Vendors of GPUs (pci-ids.ucw.cz).
const (
	nvidia = 0x10de
	amd    = 0x1002
	intel  = 0x8086
)

// driverMissing is what the kernel lacks for a card, and how to get it.
func driverMissing(p *host.PCI) (why string, fix []string) {
	switch p.Driver {
	case "":
		return "it has no driver", install(p.Vendor)
	case "vfio-pci":
		return "driver vfio-pci: it belongs to a virtual machine", []string{"driverctl unset-override " + p.Addr}
	case "nouveau":
		return "driver nouveau: CUDA needs NVIDIA's own", install(p.Vendor)
	}
	return "", nil
}

// install says how the driver of a vendor's GPUs is had.
func install(vendor uint16) []string {
	switch vendor {
	case nvidia:
		return []string{"install NVIDIA's driver (Debian: nvidia-driver; its open kernel modules, nvidia-open, can " +
			"do dma-buf)"}
	case amd:
		return []string{"the kernel's module amdgpu and its firmware (Debian: firmware-amd-graphics); see dmesg for " +
			"why it is not loaded"}
	case intel:
		return []string{"the kernel's module xe or i915 (Debian: firmware-intel-graphics); see dmesg for why it is " +
			"not loaded"}
	}
	return nil
}

// getFor says how a runtime for a card with this driver is had.
func getFor(driver string) []string {
	switch driver {
	case "nvidia":
		return []string{"libcuda.so.1 of the same version as the kernel's module (Debian: libcuda1; a container " +
			"needs --gpus all)",
			"the right to open /dev/nvidia* and /dev/nvidiactl"}
	case "amdgpu":
		return []string{"OpenCL: rocm-opencl-icd, or mesa-opencl-icd",
			"the right to open /dev/kfd and /dev/dri/renderD* (group render)"}
	case "i915", "xe":
		return []string{"OpenCL: apt-get install intel-opencl-icd",
			"the right to open /dev/dri/renderD* (group render)"}
	}
	return nil
}

// get says how a runtime is had on the machine with these facts.
func get(runtime string, f *host.Facts) (out []string) {
	nvidias := 0
	for i := range f.GPUs {
		p := f.Device(f.GPUs[i].Addr)
		if p == nil {
			continue
		}
		if p.Vendor == nvidia {
			nvidias++
		}
		if (runtime == "cuda") != (p.Vendor == nvidia) {
			continue
		}
		if why, fix := driverMissing(p); why != "" {
			out = append(out, fix...)
		} else {
			out = append(out, getFor(p.Driver)...)
		}
	}
	switch {
	case runtime == "cuda" && len(f.PCI) == 0:
		out = append(out, "it takes an NVIDIA card; whether there is one cannot be seen: "+
			cmp.Or(f.Why("/sys/bus/pci"), "no device is in /sys/bus/pci"))
	case runtime == "cuda" && nvidias == 0:
		out = append(out, "it takes an NVIDIA card, and there is none on this machine's PCI bus")
	case runtime == "opencl" && nvidias > 0:
		out = append(out, "for NVIDIA's cards: OpenCL comes with the driver (Debian: nvidia-opencl-icd)")
	}
	if runtime == "opencl" {
		out = append(out, "for the processor: apt-get install ocl-icd-libopencl1 pocl-opencl-icd")
	}
	return dedupe(out)
}

func dedupe(list []string) (out []string) {
	seen := map[string]bool{}
	for _, s := range list {
		if !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}
