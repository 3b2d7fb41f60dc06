package config

import (
	"fmt"
	"math"
	"slices"

	"github.com/penstock-io/penstock/internal/input"
	"github.com/penstock-io/penstock/internal/s3/place"
	"github.com/penstock-io/penstock/stage/record"
)

// queueOf checks that an interface and one of its queues are there.
func (d *decoder) queueOf(path, nameKey, name, queueKey string, queue int, tx bool) *Interface {
	if name == "" || d.broken[join(path, nameKey)] {
		return nil
	}
	c := d.cfg
	p, i := d.iface(name)
	if p == nil {
		if d.unread("interfaces", "interfaces.name") {
			return nil
		}
		var known []string
		for i := range c.Interfaces {
			known = append(known, c.Interfaces[i].Name)
		}
		expected, hint := "", "there are no interfaces"
		if len(known) > 0 {
			expected, hint = listed(known), ""
		}
		if near := input.Nearest(name, known); near != "" {
			hint = fmt.Sprintf("did you mean %s?", near)
		}
		d.report(Error, CodeReference, join(path, nameKey), fmt.Sprintf("there is no interface %s", shown(name)),
			expected, hint)
		return nil
	}
	var ids []int
	kind := "receive"
	if tx {
		kind = "transmit"
		if p.Tx != nil {
			for _, q := range p.Tx.Queues {
				ids = append(ids, q.ID)
			}
		}
	} else if p.Rx != nil {
		for _, q := range p.Rx.Queues {
			ids = append(ids, q.ID)
		}
	}
	half := join(item("interfaces", i), map[bool]string{true: "tx", false: "rx"}[tx])
	if list := join(half, "queues"); !slices.Contains(ids, queue) &&
		!d.unread(half, list, plainPath(list)+".id", join(path, queueKey)) {
		at := join(path, queueKey)
		if !c.given(at) {
			at = join(path, nameKey)
		}
		expected := fmt.Sprintf("an interface with %s queues", kind)
		if len(ids) > 0 {
			slices.Sort(ids)
			expected = spans(slices.Compact(ids))
		}
		d.also(d.report(Error, CodeReference, at, fmt.Sprintf("the interface %s has no %s queue %d", name, kind, queue),
			expected, ""), item("interfaces", i), "the interface is here")
	}
	return p
}

// checkHidden finds applications that would read with the processor what lies in device memory.
func (d *decoder) checkHidden(a *Application, p *Interface, path string) {
	i := -1
	if p.Rx != nil {
		i = slices.IndexFunc(p.Rx.Queues, func(q RxQueue) bool { return q.ID == a.Queue })
	}
	if i < 0 || len(p.Rx.Queues[i].Regions) == 0 {
		return
	}
	names := p.Rx.Queues[i].Regions
	r, k := d.region(names[len(names)-1])
	if r == nil || r.Kind != "device" {
		return
	}
	what, hint := "", ""
	switch {
	case a.Kind == "sink" && a.Tensor != nil && len(names) == 1 && len(p.Rx.Reorder) == 0 &&
		(a.Tensor.Sequence != nil || p.Engine.frames() && !a.Tensor.Offset.Set):
		what, hint = "the sink reads headers, or numbers of rows, with the processor",
			"two regions leave them in the first, on the host; batches of rx: reorder: have neither"
	case a.Kind == "echo" && len(names) == 1 && p.Engine.frames():
		what, hint = "echo changes the headers of frames", "two regions leave the headers in the first, on the host"
	default:
		return
	}
	d.also(d.report(Needs, CodeNotBuilt, join(path, "kind"),
		fmt.Sprintf("%s, and those of queue %d of %s are in %s, in device memory", what, a.Queue, a.Interface, r.Name),
		"", hint),
		join(item("memory_regions", k), "kind"), "its kind is here")
}

// checkBatches finds sinks that have no place for the batches that packets of their queue become.
func (d *decoder) checkBatches(a *Application, p *Interface, path string) {
	for k := 0; p.Rx != nil && k < len(p.Rx.Reorder); k++ {
		r := &p.Rx.Reorder[k]
		plan := r.Plan()
		if !r.Takes(p.Rx, a.Queue) || plan.CheckFor(r.Region, math.MaxInt, true) != nil { // that has been said
			continue
		}
		_, i := d.iface(a.Interface)
		at, here := join(item("interfaces", i), item("rx.reorder", k)), "the plan is here"
		if a.ofPackets() {
			d.also(d.reportBatches(&a.Recording, r, path), at, here)
		}
		t, batch := a.Tensor, plan.BatchBytes()
		if t == nil || batch == 0 {
			continue
		}
		desc, err := t.Desc()
		row, other := t.RowBytes()
		if batch -= t.Offset.Value + t.Strip; err != nil || other != nil || batch == row {
			continue
		}
		severity, then := Warning, "the end of each row stays zero"
		if batch > row {
			severity, then = Error, "each batch is dropped (too-long)"
		}
		expected := fmt.Sprintf("rows of %d bytes", batch)
		if n := max(batch, 0) * 8; n%desc.DType.Bits() == 0 {
			expected = fmt.Sprintf("shape: [%d, %d]", t.Shape[0], n/desc.DType.Bits())
		}
		d.also(d.report(severity, CodeConflict, join(path, "tensor.shape"),
			fmt.Sprintf("a batch of the plan %s fills %d bytes, and a row of %v has %d: %s", shown(r.Name), batch, desc,
				row, then), expected, "each batch is one row"), at, here)
	}
}

// reportBatches reports a recording of packets where there are batches.
func (d *decoder) reportBatches(x *Recording, r *Reorder, path string) int {
	return d.report(Error, CodeConflict, join(path, "record"),
		fmt.Sprintf("the plan %s has made batches of the packets, and %s holds packets", shown(r.Name), x.Format),
		"format: raw, npy or safetensors, which hold batches",
		"stages: [{type: record, ...}] of the queue, in the first place, records the packets")
}

func (d *decoder) checkApplications() {
	type place struct {
		iface string
		queue int
	}
	owner := map[place]int{}
	tensors := map[string]int{}
	for i := range d.cfg.Applications {
		a := &d.cfg.Applications[i]
		path := item("applications", i)
		p := d.queueOf(path, "interface", a.Interface, "queue", a.Queue, false)
		if p != nil && !d.broken[join(path, "queue")] {
			at := place{a.Interface, a.Queue}
			if k, twice := owner[at]; twice {
				d.also(d.report(Error, CodeConflict, path, fmt.Sprintf("queue %d of %s has an application already",
					a.Queue, a.Interface), "one application for each receive queue", ""), item("applications", k),
					"it is here")
			} else {
				owner[at] = i
			}
		}
		if p != nil {
			d.checkHidden(a, p, path)
			d.checkBatches(a, p, path)
			d.checkFormat(&a.Recording, p, a.Queue, path)
		}
		switch a.Kind {
		case "": // what it is could not be read
			d.queueOf(path, "to", a.To, "to_queue", a.ToQueue, true)
			continue
		case "echo":
			if a.To != "" {
				d.report(Error, CodeConflict, join(path, "to"), "echo has a to: it sends back where packets came from",
					"", "remove it, or write kind: forward")
			} else if p != nil {
				d.queueOf(path, "interface", a.Interface, "to_queue", a.ToQueue, true)
			}
		case "forward":
			if a.To == "" && !d.broken[join(path, "to")] {
				d.report(Error, CodeMissingKey, path, "forward has no to",
					"the name of the interface where packets leave", "")
			}
			d.queueOf(path, "to", a.To, "to_queue", a.ToQueue, true)
		case "sink":
			if t := a.Tensor; t != nil {
				d.checkTensor(t, p, join(path, "tensor"))
				if k, twice := tensors[t.Name]; twice && t.Name != "" {
					d.also(d.report(Error, CodeDuplicate, join(path, "tensor.name"),
						fmt.Sprintf("there is a tensor %s already", shown(t.Name)), "a name for each tensor", ""),
						join(item("applications", k), "tensor.name"), "it is here")
				}
				tensors[t.Name] = i
			}
		case "count":
		default: // of the program
			d.queueOf(path, "to", a.To, "to_queue", a.ToQueue, true)
		}
		if (a.Kind == "count" || a.Kind == "sink") && a.To != "" {
			d.report(Error, CodeConflict, join(path, "to"), fmt.Sprintf("%s has a to: it sends nothing", a.Kind), "",
				"remove it, or write kind: forward")
		}
		if a.Kind != "sink" && a.Record != "" {
			d.report(Error, CodeConflict, join(path, "record"),
				fmt.Sprintf("%s has a record: it keeps nothing", a.Kind), "", "remove it, or write kind: sink")
		}
		d.checkRecording(&a.Recording, path)
		if a.Kind != "sink" && a.Tensor != nil {
			d.report(Error, CodeConflict, join(path, "tensor"),
				fmt.Sprintf("%s has a tensor: it keeps nothing", a.Kind), "", "remove it, or write kind: sink")
		}
	}
}

// checkStage looks at the keys of the stage record.
func (d *decoder) checkStage(s *Stage, path string) {
	switch at := join(path, "record"); {
	case s.Type == "record" && s.Record == "" && !d.broken[at]:
		d.report(Error, CodeMissingKey, path, "the stage record has no record", "record: and the name of a file", "")
	case s.Type != "record" && s.Record != "":
		d.report(Error, CodeConflict, at, fmt.Sprintf("the stage %s has a record", shown(s.Type)), "",
			"remove it, or write type: record")
	}
	d.checkRecording(&s.Recording, path)
}

// checkFormat finds recordings of batches where no plan makes some.
func (d *decoder) checkFormat(r *Recording, p *Interface, queue int, path string) {
	if p.Rx != nil && r.Record != "" && record.Format(r.Format).Batches() &&
		!slices.ContainsFunc(p.Rx.Reorder, func(x Reorder) bool { return x.Takes(p.Rx, queue) }) {
		d.report(Error, CodeConflict, join(path, "format"), fmt.Sprintf("%s holds batches, and no plan of rx: reorder "+
			"makes some of the packets of queue %d", r.Format, queue), "format: pcapng, pcap or raw", "")
	}
}

// checkRecording finds what a recording has no use for.
func (d *decoder) checkRecording(r *Recording, path string) {
	if o := r.Rotate; o != nil && o.Size > 0 && o.Size < record.MinBytes {
		d.report(Error, CodeValue, join(path, "rotate.size"), fmt.Sprintf("files of %v are too small", o.Size),
			"0B, or at least 64KiB", "")
	}
	if r.Record == "" && !d.broken[join(path, "record")] {
		for _, x := range []struct {
			key   string
			there bool
			what  string
		}{{"rotate", r.Rotate != nil, "whose files would be rotated"},
			{"filter", r.Filter != "", "whose packets would be filtered"},
			{"overwrite", r.Overwrite, "to overwrite"}, {"upload", r.Upload != "", "whose files would be uploaded"},
			{"ring", r.Ring != (record.Ring{}), "whose packets would be kept"}} {
			if x.there {
				d.report(Error, CodeConflict, join(path, x.key), "there is no record "+x.what, "record: and a name", "")
			}
		}
	}
	if _, _, err := place.Parse(r.Upload); err != nil && r.Upload != "" {
		d.report(Error, CodeValue, join(path, "upload"), err.Error(), "", "")
	}
	if o := r.Rotate; o != nil && r.Ring != (record.Ring{}) && (o.Size > 0 || o.Packets > 0 || o.Time > 0) {
		d.report(Error, CodeConflict, join(path, "rotate"), "a ring is written as one file each time", "",
			"remove ring:, or size:, packets: and time:")
	}
}

// checkTensor looks at the tensor of a sink; p is where its packets come from, nil if that is not
// known.
func (d *decoder) checkTensor(t *Tensor, p *Interface, path string) {
	if d.cfg.Transfers == nil && !d.unread("transfers") {
		d.report(Error, CodeConflict, path, "there is no node whose peers could get the tensor", "a section transfers",
			"write transfers: {listen: [tcp://127.0.0.1:7070]}, or remove the tensor: the sink takes the packets and drops them then")
	}
	if desc, err := t.Desc(); err != nil {
		if t.DType != "" && len(t.Shape) > 0 && !d.unread(join(path, "dtype"), join(path, "shape")) {
			d.report(Error, CodeValue, join(path, "shape"), err.Error(),
				"rows that are whole bytes, and not more than 1TiB", "")
		}
	} else if size, err := desc.Bytes(); err != nil || Size(size) > anyMem {
		d.report(Error, CodeValue, join(path, "shape"), fmt.Sprintf("the tensor %v is larger than 1TiB", desc), "", "")
	}
	if p != nil && p.stream() && t.Offset.Set && t.Offset.Value > 0 {
		d.report(Error, CodeConflict, join(path, "offset"),
			"a byte stream has no packets with bytes before their payload", "", "remove it")
	}
	if p != nil && p.stream() && t.Strip > 0 {
		d.report(Error, CodeConflict, join(path, "strip"), "a byte stream has no packets with a header to strip", "",
			"remove it")
	}
	s := t.Sequence
	if s == nil || len(t.Shape) == 0 {
		return
	}
	if p != nil && p.stream() {
		d.report(Error, CodeConflict, join(path, "sequence"),
			"a byte stream has no packets whose numbers could be read", "",
			"remove it: the bytes fill the tensor in their order")
	}
	// Fewer than four times the rows, and a row of the next tensor looks like a late one of the
	// last.
	if bits := 8 * s.Width; bits > 0 && bits < 64 && uint64(1)<<bits < 4*uint64(t.Shape[0]) {
		d.report(Error, CodeConflict, join(path, "sequence.width"),
			fmt.Sprintf("a number of %s begins again after %d packets: too soon to tell tensors of %d rows apart",
				plural(s.Width, "byte"), uint64(1)<<bits, t.Shape[0]),
			fmt.Sprintf("a number that counts to %d or more", 4*t.Shape[0]), "")
	}
	if row, err := t.RowBytes(); err == nil && s.Width > 0 && s.Offset+s.Width > row+t.Strip {
		d.report(Error, CodeConflict, join(path, "sequence.offset"),
			fmt.Sprintf("a number at bytes %d to %d is not in a payload of %d bytes", s.Offset, s.Offset+s.Width-1,
				row+t.Strip), fmt.Sprintf("0 to %d", max(row+t.Strip-s.Width, 0)), "")
	}
}

// checkBenches looks at the sections of benchmarks.
func (d *decoder) checkBenches() {
	c := d.cfg
	for i := range c.BenchRx {
		b := &c.BenchRx[i]
		d.queueOf(item("bench_rx", i), "interface_name", b.Interface, "queue_id", b.Queue, false)
	}
	for i := range c.BenchTx {
		b := &c.BenchTx[i]
		path := item("bench_tx", i)
		p := d.queueOf(path, "interface_name", b.Interface, "queue_id", b.Queue, true)
		if b.IPSrc.IsValid() && b.IPDst.IsValid() && b.IPSrc.Unmap().Is4() != b.IPDst.Unmap().Is4() {
			d.also(d.report(Error, CodeConflict, join(path, "ip_dst_addr"),
				fmt.Sprintf("%v and %v are of different IP versions", b.IPSrc, b.IPDst), "both IPv4 or both IPv6", ""),
				join(path, "ip_src_addr"), "the source is here")
		}
		if s := b.SequenceOffset; s.Set && Size(s.Value)+4 > b.PayloadSize && b.PayloadSize > 0 {
			d.report(Error, CodeConflict, join(path, "sequence_number_offset"),
				fmt.Sprintf("a number at byte %d does not fit into a payload of %d bytes", s.Value,
					int64(b.PayloadSize)), fmt.Sprintf("0 to %d", int64(b.PayloadSize)-4), "")
		}
		d.benchFits(p, b, path)
	}
	for _, b := range []struct {
		s      *BenchSocket
		name   string
		server bool
	}{{c.SocketServer, "socket_bench_server", true}, {c.SocketClient, "socket_bench_client", false},
		{c.RDMAServer, "rdma_bench_server", true}, {c.RDMAClient, "rdma_bench_client", false}} {
		if b.s == nil {
			continue
		}
		if b.s.Server != b.server && !d.broken[b.name+".server"] && (c.sources == nil || c.given(b.name+".server")) {
			d.report(Error, CodeConflict, b.name+".server", fmt.Sprintf("server: %v in %s", b.s.Server, b.name),
				fmt.Sprint(b.server), "")
		}
		if !b.s.Send && !b.s.Receive && !d.unread(b.name+".send", b.name+".receive") {
			d.report(Warning, CodeConflict, b.name, fmt.Sprintf("%s neither sends nor receives", b.name),
				"send: true or receive: true", "")
		}
	}
	if l := c.Latency; l != nil {
		for i, name := range []string{l.TxInterface, l.RxInterface} {
			key := []string{"tx_interface_name", "rx_interface_name"}[i]
			if p, _ := d.iface(name); p == nil && name != "" && !d.unread("interfaces", "interfaces.name") {
				d.report(Error, CodeReference, "bench_latency."+key,
					fmt.Sprintf("there is no interface %s", shown(name)), "", "")
			}
		}
	}
}

// benchFits compares a sender's packets with the slots that they are built in.
func (d *decoder) benchFits(p *Interface, b *BenchTx, path string) {
	if p == nil || p.Tx == nil {
		return
	}
	k := slices.IndexFunc(p.Tx.Queues, func(q TxQueue) bool { return q.ID == b.Queue })
	if k < 0 || b.PayloadSize == 0 || d.unread(join(path, "payload_size"), join(path, "header_size")) {
		return
	}
	q := &p.Tx.Queues[k]
	if b.BatchSize > q.Depth && q.Depth > 0 && d.cfg.dialect == Ours {
		d.report(Warning, CodeConflict, join(path, "batch_size"),
			fmt.Sprintf("batch_size %d is more than the depth %d of the queue", b.BatchSize, q.Depth),
			fmt.Sprintf("at most %d", q.Depth), "a burst would be taken in parts")
	}
	// The sender puts on the tags and tunnels of the flows itself.
	adds := p.Tx.added()
	head, note := b.HeaderSize+Size(adds), ""
	if adds > 0 {
		note = fmt.Sprintf(" with the %d that flows of tx add", adds)
	}
	parts := []struct {
		size Size
		key  string
	}{{head + b.PayloadSize, "payload_size"}}
	if len(q.Regions) == 2 {
		parts[0].size, parts[0].key = head, "header_size"
		parts = append(parts, struct {
			size Size
			key  string
		}{b.PayloadSize, "payload_size"})
	}
	for n, name := range q.Regions {
		r, i := d.region(name)
		if r == nil || n >= len(parts) || r.BufSize == 0 || parts[n].size <= r.BufSize {
			continue
		}
		s := Error
		if n == 0 && parts[n].size-Size(adds) <= r.BufSize {
			// not every packet may get them, and DAQIRI's cards put them on
			s = Warning
		}
		if n > 0 {
			note = ""
		}
		d.also(d.report(s, CodeConflict, join(path, parts[n].key),
			fmt.Sprintf("packets of %d bytes%s do not fit into the slots of %s, which have %d", int64(parts[n].size),
				note, name, int64(r.BufSize)),
			fmt.Sprintf("buf_size of %d or more", int64(parts[n].size)), ""),
			join(item("memory_regions", i), "buf_size"), "buf_size is here")
	}
}
