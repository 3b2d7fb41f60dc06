package setup

import "github.com/penstock-io/penstock/internal/option"

// Spec describes a path: all that a program knows of it before it makes a driver. Command lines,
// configuration files and documentation follow from it. It is data: any goroutine may read it, and
// nothing changes it.
type Spec struct {
	Name    string // the word of command lines and files: "shm"
	Doc     string // one sentence
	Options []option.Option
	Gone    []Gone // what files may still have
	// New returns a pointer to the zero struct of options, of which the Fields of Options are
	// fields, nil where there are none, and the function that makes a driver of them. Its error is
	// what no machine takes; what depends on the machine, Checker and Prober say. insecure permits
	// paths to other machines that are not encrypted.
	New  func(insecure bool) (options any, driver func() (Driver, error))
	RDMA bool // it needs an RDMA device: the doctor looks for one
}

// Gone is the key of an option that was removed, and what stands for it now.
type Gone struct{ Key, Why string }

// Driver makes a driver. Nothing is opened. The error is an *option.Error without an owner, or that
// of New.
func (s *Spec) Driver(settings option.Settings, insecure bool) (Driver, error) {
	options, driver := s.New(insecure)
	if err := option.List(s.Options).Set(option.OfPort, "", settings, options); err != nil {
		return nil, err
	}
	return driver()
}
