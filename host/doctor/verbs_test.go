package doctor

import (
	"errors"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/fake/verbs"
)

// What libibverbs says is taken over; that there is none is an answer too.
func TestAskVerbs(t *testing.T) {
	path, err := verbs.Build()
	if errors.Is(err, verbs.ErrMissing) {
		testenv.Missing(t, "the headers of libibverbs", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	a := verbsAnswer(t.Context(), path)
	d := a.Device("fake0")
	if a.Error != "" || d == nil || d.Error != "" || len(d.Ports) == 0 || d.Ports[0].MTU < 256 ||
		d.Ports[0].MaxMTU < d.Ports[0].MTU || d.Ports[0].GID < 0 {
		t.Errorf("%+v", a)
	}
	if a.Device("fake9") != nil || a.Port("fake0", 1) == nil || a.Port("fake0", 9) != nil || a.Port("fake9", 1) != nil {
		t.Errorf("%+v", a)
	}
	if a := verbsAnswer(t.Context(), "/nowhere/libibverbs.so.1"); !strings.Contains(a.Error, "libibverbs") ||
		a.Devices != nil {
		t.Errorf("%+v", a)
	}
}
