package config

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Explain writes the effective configuration in Penstock's format, each value with where it came
// from, and the memory that it takes.
func (c *Config) Explain(w io.Writer) error {
	p := &printer{cfg: c, all: true}
	p.file()
	text := p.b.String() + "\n" + c.memory()
	_, err := io.WriteString(w, text)
	return err
}

// Use is the memory that a region takes.
type Use struct {
	Region string `json:"region"`
	Kind   string `json:"kind"`
	Where  string `json:"where"` // "NUMA node 0", "GPU 1", "any NUMA node"
	Slots  int    `json:"slots"`
	Slot   Size   `json:"slot_bytes"` // distance of two slots
	Bytes  Size   `json:"bytes"`
	Pages  int    `json:"huge_pages,omitempty"` // of Page
	Page   Size   `json:"huge_page,omitempty"`
}

// Memory is what each region takes, in the order of the file. What engines need besides (rings,
// socket buffers, spare chunks) comes on top; each says so when it is opened.
func (c *Config) Memory() []Use {
	var out []Use
	for i := range c.Regions {
		r := &c.Regions[i]
		align := max(r.Align, 1)
		u := Use{Region: r.Name, Kind: r.Kind, Slots: r.NumBufs, Slot: (r.BufSize + align - 1) / align * align,
			Bytes: r.Bytes(), Where: "any NUMA node"}
		switch {
		case r.OnGPU():
			u.Where = fmt.Sprintf("GPU %d", r.GPU)
		case r.NUMA >= 0:
			u.Where = fmt.Sprintf("NUMA node %d", r.NUMA)
		}
		if r.Kind == "huge" && r.PageSize > 0 {
			u.Pages, u.Page = int(u.Bytes/r.PageSize), r.PageSize
		}
		out = append(out, u)
	}
	return out
}

func (c *Config) memory() string {
	uses := c.Memory()
	if len(uses) == 0 {
		return "# It takes no memory for packets.\n"
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	total := Size(0)
	fmt.Fprintln(w, "# region\tkind\twhere\tslots\tslot\tmemory")
	for _, u := range uses {
		kind := u.Kind
		if u.Pages > 0 {
			kind = fmt.Sprintf("%s (%s of %v)", u.Kind, plural(u.Pages, "page"), u.Page)
		}
		fmt.Fprintf(w, "# %s\t%s\t%s\t%d\t%d B\t%s\n", u.Region, kind, u.Where, u.Slots, int64(u.Slot),
			about(int64(u.Bytes)))
		total += u.Bytes
	}
	fmt.Fprintf(w, "# together\t\t\t\t\t%s\n", about(int64(total)))
	w.Flush()
	b.WriteString("# Rings, buffers of sockets and spare chunks of the engines come on top.\n")
	return b.String()
}
