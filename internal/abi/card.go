package abi

import (
	"sync"

	"github.com/penstock-io/penstock/internal/accel"
)

// cards are the CUDA devices that memory was adopted or pinned for, by their numbers. They stay open until the process ends.
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
