package feed

import (
	"fmt"
	"os"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/filewatch"
)

// readWeights reads a file of weights: size bytes, or any number that weights may have where size is 0.
func readWeights(path string, size int) ([]byte, error) {
	bad := func(what string, got any, want string) error {
		return fmt.Errorf("weights_file %s: %s is %v: expected %s: %w", path, what, got, want, engine.ErrInvalid)
	}
	i, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("weights_file: %w", err)
	case !i.Mode().IsRegular(): // a pipe could keep the reader for ever
		return nil, bad("its type", i.Mode().Type(), "a regular file")
	case size > 0 && i.Size() != int64(size):
		return nil, bad("its size", i.Size(), fmt.Sprintf("%d bytes", size))
	case i.Size() == 0 || i.Size() > maxMemory || i.Size()%16 != 0:
		return nil, bad("its size", i.Size(), "a multiple of 16 bytes")
	}
	w, err := os.ReadFile(path)
	if err == nil && int64(len(w)) != i.Size() {
		err = bad("its size", len(w), fmt.Sprintf("%d bytes, as before: it changes", i.Size()))
	}
	return w, err
}

// follow has the weights be those of the file from now on. A file that is gone, or has another size, changes nothing and is counted.
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
	if err := load(); err != nil { // what changed since the watch began is seen
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

// unfollow ends that.
func (s *Stage) unfollow() error {
	if s.watch == nil {
		return nil
	}
	err := s.watch.Close()
	s.follows.Wait()
	return err
}
