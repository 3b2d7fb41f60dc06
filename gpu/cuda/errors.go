package cuda

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/internal/cuda"
)

// kinds are the kinds of errors in the words of package gpu.
var kinds = []struct{ from, to error }{
	{cuda.ErrUnavailable, driver.ErrUnavailable},
	{cuda.ErrOutOfMemory, driver.ErrOutOfMemory},
	{cuda.ErrLost, driver.ErrDeviceLost},
	{cuda.ErrArch, driver.ErrArch},
	{cuda.ErrUnsupported, driver.ErrUnsupported},
	{cuda.ErrDriver, driver.ErrDriver},
}

// translate makes an error of internal/cuda one of package gpu: with its kind, and with everything
// that it says. What is of no kind the driver refused.
func translate(err error) error {
	if err == nil {
		return nil
	}
	kind := driver.ErrDriver
	for _, k := range kinds {
		if errors.Is(err, k.from) {
			kind = k.to
			break
		}
	}
	var e *cuda.Error
	if !errors.As(err, &e) {
		return fmt.Errorf("%w: %w", kind, err)
	}
	out := &driver.Error{Kind: kind, Op: e.Call, Code: int(e.Result), Name: e.Result.String(), Text: e.Detail,
		Hint: e.Result.Hint()}
	if l := (*cuda.LoadError)(nil); errors.As(err, &l) {
		out.Log = l.Log
		if e.Result == cuda.ErrorInvalidPTX {
			out.Kind = driver.ErrBuild
		}
	}
	return out
}

// explain is translate, with more about what happened and what to do.
func explain(err error, text, hint string) error {
	err = translate(err)
	if e, ok := err.(*driver.Error); ok {
		for _, x := range []struct {
			to   *string
			more string
		}{{&e.Text, text}, {&e.Hint, hint}} {
			if *x.to != "" && x.more != "" {
				*x.to += "; "
			}
			*x.to += x.more
		}
	}
	return err
}
