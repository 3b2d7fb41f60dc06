package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/penstock-io/penstock/transfer/path/drivers"
	"github.com/penstock-io/penstock/transfer/path/verbs"
)

// print writes the report for people.
func (r *demoReport) print(w io.Writer, o demoOptions) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	placed := r.Memory != "host"
	head := "path\tbytes\ttime\tGB/s\tof memcpy\tcopies/byte\tset-up\tverified\t"
	if placed {
		head = strings.Replace(head, "of memcpy\t", "of memcpy\tof host\t", 1)
	}
	fmt.Fprintln(t, head)
	for _, x := range r.Rows {
		if x.Refused != "" {
			continue
		}
		gbs, share := "-", "-"
		if x.GBs > 0 {
			gbs, share = fmt.Sprintf("%.2f", x.GBs), fmt.Sprintf("%.0f %%", 100*x.Share)
		}
		verified := "NO"
		if x.Verified == x.Bytes {
			verified = "every byte"
		}
		copies := fmt.Sprintf("%d user + %d kernel", x.UserCopies, x.KernelCopies)
		if placed {
			ofHost := "-"
			if x.OfHost > 0 {
				ofHost = fmt.Sprintf("%.0f %%", 100*x.OfHost)
			}
			share += "\t" + ofHost
			copies += fmt.Sprintf(" + %d device", x.DeviceCopies)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", x.What, formatBytes(x.Bytes), formatTime(x.Took), gbs,
			share,
			copies, formatTime(x.Setup), verified)
	}
	t.Flush()
	for _, x := range r.Rows {
		if x.Refused != "" {
			fmt.Fprintf(w, "\n%s: refused: %s\n", x.What, x.Refused)
		}
	}
	fmt.Fprintf(w, "\nCopying memory here: %.1f GB/s with one core, %.1f GB/s with two. Each time is the median "+
		"of %s.\n",
		r.CopyOneGBs, r.CopyGBs, count(o.repeat, "move", "moves"))
	if !o.verbose {
		fmt.Fprint(w, "With -v: what the columns mean, how each transfer went, and which paths this machine lacks.\n")
		return nil
	}
	r.explain(w)
	return nil
}

// explain writes what -v adds to the table.
func (r *demoReport) explain(w io.Writer) {
	fmt.Fprint(w, "\ntime: median of one move of everything, after one to warm up and without the set-up, which is "+
		"paid once per peer.\n"+
		"of memcpy: share of the bandwidth at which two cores copy memory here. plain Go: net.Conn, Write and "+
		"io.ReadFull.\n"+
		"put: this process writes into the other's memory; get: it reads from there; borrow: it looks at it, nothing "+
		"is copied.\n")
	if r.Memory != "host" {
		fmt.Fprintf(w, "of host: beside the same move between host memories, made in turn with it: what is missing "+
			"to 100 %% is what %s memory costs.\n", r.Memory)
		if r.ByKernel {
			fmt.Fprint(w, "verified: the receiver looked at every byte, read back where the CPU does not reach it, "+
				"and a kernel of the device summed the same bytes.\n")
		}
	}
	for _, x := range r.Rows {
		if len(x.Explain) == 0 {
			continue
		}
		fmt.Fprintf(w, "\nThe last %s:\n", x.What)
		for _, l := range x.Explain {
			fmt.Fprintf(w, "  %s\n", l)
		}
	}
	fmt.Fprint(w, "\nA put that was left to choose its path:\n")
	for _, l := range r.Choice {
		fmt.Fprintf(w, "  %s\n", l)
	}
	fmt.Fprint(w, "\nNot available:\n")
	for _, l := range r.Unavailable {
		fmt.Fprintf(w, "  %s\n", l)
	}
}

// unavailable says which paths do not exist here, or are not shown, and why.
func unavailable() []string {
	rdma := "verbs (RDMA): a device is here, and the demo does not show it yet: penstock bench transfer --path verbs"
	all, err := drivers.New([]string{verbs.Name}, false)
	if err == nil {
		err = drivers.Probe(all[0])
	}
	if err != nil {
		rdma = "verbs (RDMA): " + strings.TrimPrefix(err.Error(), "verbs: ")
	}
	return []string{
		rdma,
		"datagram (UDP, AF_XDP, DPDK): this version has no path over packets yet; for streams of packets see examples/",
	}
}

func formatBytes(n uint64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.2f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%d B", n)
}

// formatTime rounds to three digits, which is more than any figure here is worth.
func formatTime(d time.Duration) string {
	switch {
	case d >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/1e6)
	case d >= time.Microsecond:
		return fmt.Sprintf("%.1f us", float64(d)/1e3)
	}
	return fmt.Sprintf("%d ns", d.Nanoseconds())
}
