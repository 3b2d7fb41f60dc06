package doctor

import (
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestPictures(t *testing.T) {
	for _, name := range []string{"server", "spark", "laptop", "vm"} {
		m := machine(t, name)
		got := m.Picture()
		file := filepath.Join("testdata", name+".picture")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatalf("%v; go test ./host/doctor -run Pictures -update writes it", err)
		}
		if got != string(want) {
			t.Errorf("%s: it is\n%s\nexpected\n%s", file, got, want)
		}
		for line := range strings.Lines(got) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > textWidth {
				t.Errorf("%s: a line of %d columns: %s", name, n, line)
			}
		}
		texts := drawingOf(t, m.SVG())
		for i := range m.facts.CPUs {
			if !texts[strconv.Itoa(m.facts.CPUs[i].ID)] {
				t.Errorf("%s: processor %d is not drawn", name, m.facts.CPUs[i].ID)
			}
		}
		for _, n := range m.facts.Nets {
			if !n.Virtual && !texts[n.Name] {
				t.Errorf("%s: interface %s is not drawn", name, n.Name)
			}
		}
		if again := m.SVG(); again != m.SVG() {
			t.Errorf("%s: two drawings differ", name)
		}
	}
}

// drawingOf reads a drawing, which must be XML that needs nothing else, with all boxes and texts
// inside of it, and returns its texts.
func drawingOf(t *testing.T, svg string) map[string]bool {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	texts := map[string]bool{}
	var width, height float64
	attr := func(e xml.StartElement, name string) float64 {
		for _, a := range e.Attr {
			if a.Name.Local == name && !strings.HasSuffix(a.Value, "%") {
				v, err := strconv.ParseFloat(a.Value, 64)
				if err != nil {
					t.Errorf("%s of %s: %v", name, e.Name.Local, err)
				}
				return v
			}
		}
		return 0
	}
	for {
		tok, err := d.Token()
		if err == io.EOF {
			return texts
		}
		if err != nil {
			t.Fatalf("%v:\n%s", err, svg)
		}
		switch e := tok.(type) {
		case xml.StartElement:
			switch e.Name.Local {
			case "svg":
				width, height = attr(e, "width"), attr(e, "height")
			case "rect":
				if x, y := attr(e, "x")+attr(e, "width"), attr(e, "y")+attr(e, "height"); x > width || y > height {
					t.Errorf("a box reaches %g, %g outside of %g, %g", x, y, width, height)
				}
			case "text":
				if x, y := attr(e, "x"), attr(e, "y"); x > width || y > height {
					t.Errorf("a text at %g, %g outside of %g, %g", x, y, width, height)
				}
			case "line", "title", "g":
			default:
				t.Errorf("an element %s", e.Name.Local)
			}
			for _, a := range e.Attr {
				if strings.HasPrefix(a.Name.Local, "on") || a.Name.Local == "href" {
					t.Errorf("an attribute %s", a.Name.Local)
				}
			}
		case xml.CharData:
			texts[strings.TrimSpace(string(e))] = true
		}
	}
}

// Names of whatever kind do no harm, and a machine without anything has a picture, too.
func TestPictureOfOddMachines(t *testing.T) {
	long := strings.Repeat("<script>&\"'", 12)
	m := machine(t, "server", "PowerEdge R760", long, "/sys/class/net/ens2f0 ->", "/sys/class/net/<b>&amp;\"x' ->",
		"NVIDIA H100 PCIe", long)
	drawingOf(t, m.SVG())
	if !strings.Contains(m.Picture(), "<b>&amp;\"x'") {
		t.Error(m.Picture())
	}
	empty, err := Open(strings.NewReader("penstock host recording 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	drawingOf(t, empty.SVG())
	if s := empty.Picture(); s != "0 processors\n" {
		t.Errorf("%q", s)
	}
	// Bridges in a circle.
	var b strings.Builder
	b.WriteString("penstock host recording 1\n")
	for i := range 3 {
		fmt.Fprintf(&b, "/sys/bus/pci/devices/0000:0%d:00.0 -> /sys/devices/pci0000:00/0000:0%d:00.0/0000:0%d:00.0\n",
			i, (i+1)%3, i)
		fmt.Fprintf(&b, "/sys/devices/pci0000:00/0000:0%d:00.0/0000:0%d:00.0/class = 0x020000\n", (i+1)%3, i)
	}
	m, err = Open(strings.NewReader(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	drawingOf(t, m.SVG())
	if s := m.Picture(); strings.Count(s, "\n") > 20 {
		t.Error(s)
	}
	Run(m, Needs{})
}
