package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
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
		return nil, fmt.Errorf("peers: clinfo: %w: devices of %d platforms, but %d platforms", ErrOutput,
			len(r.Devices), len(r.Platforms))
	}
	var found []OpenCLDevice
	for i, d := range r.Devices {
		for _, x := range d.Online {
			if x.Name == "" {
				return nil, fmt.Errorf("peers: clinfo: %w: a device without a name", ErrOutput)
			}
			found = append(found, OpenCLDevice{r.Platforms[i].Name, r.Platforms[i].Version, x.Name, x.Driver, x.Memory,
				x.Units})
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
				return "", fmt.Errorf("peers: the headers of OpenCL are %w: %w; on Debian: %s", ErrAbsent, err,
					p.Install())
			}
			return v, nil
		}
	}
	return "", fmt.Errorf("peers: PoCL is %w: clinfo lists %d devices, none of PoCL; on Debian: %s", ErrAbsent,
		len(devices), p.Install())
}
