// Package runtimes is the table of the runtimes of package gpu in this build.
//
//	c, err := runtimes.Table().Open("") // the first that is here; c.Skipped has the others, and why not
//
// It is apart from package gpu because it knows all of them, and gpu knows none.
package runtimes

import (
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/cuda"
	"github.com/penstock-io/penstock/gpu/host"
	"github.com/penstock-io/penstock/gpu/opencl"
)

// Table is the runtimes of this build, the preferred one first. The host is the last and always
// there, so that Table().Open("") finds one on every machine; what it passed over on the way is in
// the Choice. It is made again by each call.
func Table() gpu.Table {
	return gpu.Table{
		{Name: "cuda", Open: func() (*gpu.Runtime, error) { return cuda.Open(cuda.Options{}) }},
		{Name: "opencl", Open: func() (*gpu.Runtime, error) { return opencl.Open(opencl.Options{}) }},
		{Name: "host", Open: func() (*gpu.Runtime, error) { return host.Open(host.Options{}) }},
	}
}
