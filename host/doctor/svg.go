package doctor

import (
	"encoding/xml"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/penstock-io/penstock/host"
)

// Measures of the drawing, in pixels.
const (
	svgWidth  = 1000
	svgMargin = 24
	svgRow    = 38 // from one box to the next
	svgBox    = 30
	svgIndent = 34
	svgCell   = 35 // a processor
	svgHalf   = 28
	svgChar   = 8.2 // of the text of boxes, on average
)

// Colours, by kind. The second is of the text.
var colours = map[string][2]string{
	"root":   {"#e6e8eb", "#333"},
	"bridge": {"#f4f5f6", "#333"},
	"nic":    {"#cfe3f7", "#123a5c"},
	"net":    {"#eaf3fc", "#123a5c"},
	"gpu":    {"#d5efcf", "#1d4a14"},
	"disk":   {"#efe7db", "#4d3c1e"},
}

// palette is of interfaces with queues, in their order.
var palette = []string{"#1f77b4", "#d95f02", "#2a9d5c", "#9467bd", "#b8860b", "#c2185b", "#00838f", "#6d4c41"}

// SVG is the machine as a drawing that stands for itself, without scripts, fonts and images of
// others: what Picture has, and each processor with the queues that it serves.
func (m Machine) SVG() string {
	d := draw(m.facts)
	s := &svg{d: d, y: svgMargin}
	for _, l := range lines(d.title, 78) {
		s.text(svgMargin, s.y+18, 19, "#111", "bold", clip(l, 78))
		s.y += 24
	}
	s.y += 10
	s.legend(m.facts)
	for _, p := range d.parts {
		s.part(m.facts, &p)
	}
	if len(d.far) > 0 {
		s.distances()
	}
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="Helvetica, Arial, sans-serif" role="img">`+"\n",
		svgWidth, s.y+svgMargin, svgWidth, s.y+svgMargin)
	fmt.Fprintf(&out, "<title>%s</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n", escape(d.title))
	out.WriteString(s.b.String())
	out.WriteString("</svg>\n")
	return out.String()
}

// svg is a drawing at work: y is where the next thing goes.
type svg struct {
	d *drawing
	b strings.Builder
	y int
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a strings.Builder takes all
	return b.String()
}

func (s *svg) text(x, y, size int, colour, weight, text string) {
	fmt.Fprintf(&s.b, `<text x="%d" y="%d" font-size="%d" fill="%s" font-weight="%s">%s</text>`+"\n", x, y, size,
		colour, weight, escape(text))
}

func (s *svg) rect(x, y, w, h int, fill, stroke string, radius int) {
	fmt.Fprintf(&s.b, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s" stroke="%s" rx="%d"/>`+"\n", x, y, w, h,
		fill, stroke, radius)
}

func (s *svg) line(x1, y1, x2, y2 int, colour string, width float64) {
	fmt.Fprintf(&s.b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" stroke-width="%g"/>`+"\n", x1, y1, x2, y2,
		colour, width)
}

// colour is that of an interface.
func (s *svg) colour(net string) string {
	return palette[max(slices.Index(s.d.nets, net), 0)%len(palette)]
}

func (s *svg) legend(f *host.Facts) {
	x := svgMargin
	entry := func(fill, stroke, text string) {
		if w := 24 + int(float64(utf8.RuneCountInString(text))*svgChar) + 20; x+w > svgWidth-svgMargin {
			x, s.y = svgMargin, s.y+22
		}
		s.rect(x, s.y, 16, 16, fill, stroke, 3)
		s.text(x+22, s.y+13, 13, "#333", "normal", text)
		x += 24 + int(float64(utf8.RuneCountInString(text))*svgChar) + 20
	}
	if len(f.CPUs) > 0 {
		entry("#fff", "#999", "processor")
	}
	if len(f.Isolated) > 0 {
		entry("#fff3c4", "#b08900", "isolated")
	}
	for _, n := range s.d.nets[:min(len(s.d.nets), 12)] {
		entry(s.colour(n), s.colour(n), "queues of "+clip(n, 20))
	}
	s.y += 34
}

func (s *svg) part(f *host.Facts, p *part) {
	top := s.y
	mark := s.b.Len()
	s.y += 10
	for _, l := range lines(p.title, 100) {
		s.y += 20
		s.text(svgMargin+14, s.y, 15, "#111", "bold", l)
	}
	s.y += 12
	s.cpus(f, p.cpus)
	for _, t := range p.devices {
		s.tree(t, svgMargin+14, -1)
		s.y += 4
	}
	s.y += 8
	// The frame belongs below what is in it.
	inside := s.b.String()
	s.b.Reset()
	s.b.WriteString(inside[:mark])
	s.rect(svgMargin, top, svgWidth-2*svgMargin, s.y-top, "#fbfbfc", "#8a9099", 8)
	s.b.WriteString(inside[mark:])
	s.y += 16
}

// lines breaks a text into lines of at most n letters.
func lines(text string, n int) []string {
	out := []string{""}
	for w := range strings.FieldsSeq(text) {
		last := &out[len(out)-1]
		switch {
		case *last == "":
			*last = w
		case utf8.RuneCountInString(*last)+1+utf8.RuneCountInString(w) > n:
			out = append(out, w)
		default:
			*last += " " + w
		}
	}
	return out
}

// cpus draws processors, the threads of a core below each other in one frame.
func (s *svg) cpus(f *host.Facts, all []*host.CPU) {
	if len(all) == 0 {
		return
	}
	var cores [][]*host.CPU
	at := map[int]int{}
	for _, c := range all {
		first := c.ID
		if len(c.Siblings) > 0 {
			first = c.Siblings[0]
		}
		i, ok := at[first]
		if !ok {
			i = len(cores)
			at[first] = i
			cores = append(cores, nil)
		}
		cores[i] = append(cores[i], c)
	}
	threads := 1
	for _, c := range cores {
		threads = max(threads, len(c))
	}
	row := (svgWidth - 2*svgMargin - 28) / (svgCell + 3)
	for i, c := range cores {
		x := svgMargin + 14 + i%row*(svgCell+3)
		y := s.y + i/row*(threads*svgHalf+8)
		for k, t := range c {
			s.cpu(f, t, x, y+k*svgHalf)
		}
		s.b.WriteString("<g fill=\"none\">")
		s.rect(x-1, y-1, svgCell+2, len(c)*svgHalf+1, "none", "#555", 2)
		s.b.WriteString("</g>\n")
	}
	s.y += (len(cores)+row-1)/row*(threads*svgHalf+8) + 10
}

func (s *svg) cpu(f *host.Facts, c *host.CPU, x, y int) {
	fill, ink := "#fff", "#444"
	if slices.Contains(f.Isolated, c.ID) {
		fill = "#fff3c4"
	}
	queues := s.d.queues[c.ID]
	s.rect(x, y, svgCell, svgHalf-1, fill, "#ccc", 1)
	tip := fmt.Sprintf("processor %d", c.ID)
	if len(queues) > 0 {
		net, queue, _ := strings.Cut(queues[0], " ")
		label := "q" + queue
		if len(queues) > 1 {
			label += "+"
		}
		s.rect(x, y+13, svgCell, svgHalf-14, s.colour(net), "none", 1)
		s.text(x+3, y+24, 10, "#fff", "bold", label)
		tip += ": " + strings.Join(queues, ", ")
	}
	fmt.Fprintf(&s.b, `<text x="%d" y="%d" font-size="11" fill="%s">%d<title>%s</title></text>`+"\n", x+3, y+11, ink,
		c.ID, escape(tip))
}

// tree draws a thing with those below it; from is where the line from above begins, -1: nowhere.
func (s *svg) tree(t *thing, x, from int) {
	c := colours[t.kind]
	y := s.y
	label := t.name
	if t.addr != "" {
		label = t.addr + "  " + t.name
	}
	width := min(int(float64(utf8.RuneCountInString(label))*svgChar)+20, svgWidth-svgMargin-20-x)
	ink, weight := "#777", 2.0
	if t.slow && t.kind != "net" {
		ink = "#c62828"
	}
	if from >= 0 {
		s.line(x-svgIndent+12, from, x-svgIndent+12, y+svgBox/2, "#777", weight)
		s.line(x-svgIndent+12, y+svgBox/2, x, y+svgBox/2, ink, weight)
	}
	s.rect(x, y, width, svgBox, c[0], c[1], 5)
	s.text(x+9, y+20, 14, c[1], "normal", clip(label, int(float64(width-16)/svgChar)))
	rest := t.detail
	if t.link != "" {
		rest = strings.TrimPrefix(rest+", ", ", ") + t.link
	}
	colour := "#444"
	if t.slow {
		colour = "#c62828"
	}
	// What does not fit beside the box goes below it.
	room := int(float64(svgWidth-svgMargin-16-x-width) / (svgChar - 0.7))
	if rest != "" && room >= 24 {
		all := lines(rest, room)
		s.text(x+width+10, y+20, 13, colour, "normal", all[0])
		for _, l := range all[1:] {
			s.y += 17
			s.text(x+width+10, s.y+20, 13, colour, "normal", l)
		}
	} else if rest != "" {
		s.y += svgBox - 10
		for _, l := range lines(rest, max(int(float64(svgWidth-svgMargin-16-x)/(svgChar-0.7)), 24)) {
			s.y += 17
			s.text(x+9, s.y+6, 13, colour, "normal", l)
		}
		s.y -= svgBox - 24
	}
	s.y += svgRow
	from = y + svgBox
	for _, child := range t.children {
		s.tree(child, x+svgIndent, from)
	}
}

func (s *svg) distances() {
	s.y += 6
	s.text(svgMargin, s.y+12, 14, "#111", "bold", "From GPU to interface")
	s.y += 20
	for _, x := range s.d.far {
		colour := "#c62828"
		if x.d.Direct() {
			colour = "#2a7d3c"
		}
		s.y += 20
		s.text(svgMargin, s.y, 14, colour, "bold", string(x.d))
		s.text(svgMargin+56, s.y, 14, "#333", "normal", clip(x.gpu+" to "+x.net, 110))
	}
	s.y += 26
	s.text(svgMargin, s.y, 12, "#555", "normal",
		"PIX, PXB: below one switch. PHB, NODE: over the processor. SYS: over the connection between processors.")
	s.y += 4
}
