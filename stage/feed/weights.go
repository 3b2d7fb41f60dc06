package feed

import (
	"fmt"
	"io"
	"os"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/filewatch"
	"github.com/penstock-io/penstock/internal/sys"
)

// readWeights reads a file of weights: size bytes, or any number that weights may have where size
// is 0.
func readWeights(path string, size int) ([]byte, error) {
	bad := func(what string, got any, want string) error {
		return fmt.Errorf("weights_file %s: %s is %v: expected %s: %w", path, what, got, want, engine.ErrInvalid)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|sys.ONonblock, 0) // a pipe could keep the reader for ever
	if err != nil {
		return nil, fmt.Errorf("weights_file: %w", err)
	}
	defer f.Close()
	i, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("weights_file: %w", err)
	case !i.Mode().IsRegular():
		return nil, bad("its type", i.Mode().Type(), "a regular file")
	case size > 0 && i.Size() != int64(size):
		return nil, bad("its size", i.Size(), fmt.Sprintf("%d bytes", size))
	case i.Size() == 0 || i.Size() > maxMemory || i.Size()%16 != 0:
		return nil, bad("its size", i.Size(), "a multiple of 16 bytes")
	}
	w := make([]byte, i.Size()) // no more than was checked, however the file grows
	if _, err := io.ReadFull(f, w); err != nil {
		return nil, fmt.Errorf("weights_file %s: %w", path, err)
	}
	return w, nil
}

// follow reads the weights from the file, and again whenever the file changes. A file that is gone,
// or has another size, changes nothing and is counted.
func (s *Stage) follow() (err error) {
	path := s.o.WeightsFile
	if s.watch, err = filewatch.New(path); err != nil {
		return err
	}
	load := func() error {
		w, err := readWeights(path, s.o.Weights)
		if err == nil {
			err = s.SetWeights(w)
		}
		return err
	}
	if err := load(); err != nil { // the watch has begun: no change is missed
		return err
	}
	s.follows.Go(func() {
		for range s.watch.C() {
			if load() != nil {
				s.refused.Inc()
			}
		}
	})
	return nil
}

// unfollow ends the watch, and waits for the goroutine that reads the file.
func (s *Stage) unfollow() error {
	if s.watch == nil {
		return nil
	}
	err := s.watch.Close()
	s.follows.Wait()
	return err
}
