package abi

import (
	"fmt"
	"strings"
	"sync"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/gpu/runtimes"
	"github.com/penstock-io/penstock/internal/accel"
	"github.com/penstock-io/penstock/mem"
)

// cards are the CUDA devices that memory was adopted or pinned for, by their numbers. They stay
// open until the process ends.
var cards struct {
	mu   sync.Mutex
	open map[int]*accel.Accelerator
}

// Card is a CUDA device.
func Card(device int) (*accel.Accelerator, error) {
	cards.mu.Lock()
	defer cards.mu.Unlock()
	if a := cards.open[device]; a != nil {
		return a, nil
	}
	a, err := accel.Open(accel.Options{Runtime: "cuda", Device: device})
	if err != nil {
		return nil, err
	}
	if cards.open == nil {
		cards.open = map[int]*accel.Accelerator{}
	}
	cards.open[device] = a
	return a, nil
}

// OpenDevice makes a region of memory of a CUDA device that another process has allocated, by a
// handle of its driver and the PCI address of the device: the numbers of devices may be others
// there.
func OpenDevice(name, bus string, size uint64, token []byte) (*mem.Region, error) {
	bus = strings.ToLower(bus)
	n, err := at(bus)
	if err != nil {
		return nil, err
	}
	a, err := Card(n)
	if err != nil {
		return nil, err
	}
	return a.OpenShared(name, gpumem.Handle{Device: bus, Size: size, Token: token})
}

// at is the number of the device at a PCI address.
func at(bus string) (int, error) {
	cards.mu.Lock()
	for n, a := range cards.open {
		if a.Context().Device().Info().Bus == bus {
			cards.mu.Unlock()
			return n, nil
		}
	}
	cards.mu.Unlock()
	choice, err := runtimes.Table().Open("cuda")
	if err != nil {
		return 0, err
	}
	defer choice.Close()
	for n, d := range choice.Devices() {
		if d.Info().Bus == bus {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%w: no CUDA device at the PCI address %.40q", gpu.ErrUnavailable, bus)
}
