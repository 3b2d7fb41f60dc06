package system

import (
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/config"
)

var update = flag.Bool("update", false, "rewrite golden files")

// The plan for people: in the order in which things are opened, in 80 columns, with all that is
// missing. What depends on the machine, the list of its cores, is taken out.
func TestPlanText(t *testing.T) {
	text, err := os.ReadFile("testdata/plan.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cfg, problems := config.Load("plan.yaml", text, config.Options{})
	if cfg == nil {
		t.Fatal(problems.Text(text))
	}
	p, err := MakePlan(cfg, Options{Engines: noted(t, &diary{})})
	if err != nil {
		t.Fatal(err)
	}
	for i := range p.Missing {
		if strings.HasPrefix(p.Missing[i].Expected, "one of ") {
			p.Missing[i].Expected = "one of ..."
		}
	}
	got := p.Text()
	for line := range strings.Lines(got) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > columns {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if *update {
		if err := os.WriteFile("testdata/plan.txt", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/plan.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the plan is\n%s\nexpected\n%s", got, want)
	}
	// As JSON it says the same.
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var back Plan
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if back.Text() != got {
		t.Errorf("from JSON:\n%s", back.Text())
	}
	if !reflect.DeepEqual(back.Missing, p.Missing) || len(p.Missing) == 0 || p.Missing[0].Severity != config.Needs {
		t.Errorf("%+v", back.Missing)
	}
}
