package cm

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// The layouts and numbers of this package are those of the installed header.
func TestLayout(t *testing.T) {
	prog, err := testenv.Compile("cm-layout", []string{"testdata/layout.c"})
	if err != nil {
		testenv.Missing(t, "a C compiler with librdmacm-dev", err)
	}
	out, err := exec.Command(prog).Output()
	if err != nil {
		t.Fatal(err)
	}
	var id cmID
	var p cmParams
	var e cmEvent
	var ch cmChannel
	var q qpAttr
	var u udParams
	var i addrInfo
	ours := map[string]uintptr{
		"id.verbs": unsafe.Offsetof(id.verbs), "id.channel": unsafe.Offsetof(id.channel),
		"id.context": unsafe.Offsetof(id.context),
		"id.qp":      unsafe.Offsetof(id.qp), "id.source": unsafe.Offsetof(id.source),
		"id.dest":  unsafe.Offsetof(id.dest),
		"id.ib":    unsafe.Offsetof(id.ib),
		"id.paths": unsafe.Offsetof(id.paths), "id.numPaths": unsafe.Offsetof(id.numPaths),
		"id.ps": unsafe.Offsetof(id.ps), "id.port": unsafe.Offsetof(id.port),
		"params.private": unsafe.Offsetof(p.private), "params.privateLen": unsafe.Offsetof(p.privateLen),
		"params.responder": unsafe.Offsetof(p.responder),
		"params.initiator": unsafe.Offsetof(p.initiator), "params.flow": unsafe.Offsetof(p.flow),
		"params.retry":    unsafe.Offsetof(p.retry),
		"params.rnrRetry": unsafe.Offsetof(p.rnrRetry), "params.srq": unsafe.Offsetof(p.srq),
		"params.qpn": unsafe.Offsetof(p.qpn), "params": unsafe.Sizeof(p),
		"event.id": unsafe.Offsetof(e.id), "event.listen": unsafe.Offsetof(e.listen),
		"event.typ":    unsafe.Offsetof(e.typ),
		"event.status": unsafe.Offsetof(e.status), "event.params": unsafe.Offsetof(e.params),
		"channel.fd":  unsafe.Offsetof(ch.fd),
		"device.name": deviceName, "context.device": 0,
		"qp.state": unsafe.Offsetof(q.state), "qp.maxRdAtomic": unsafe.Offsetof(q.maxRdAtomic),
		"qp.maxDestAtomic": unsafe.Offsetof(q.maxDestAtomic),
		"qp.minRNR":        unsafe.Offsetof(q.minRNR), "qp.rnrRetry": unsafe.Offsetof(q.rnrRetry),
		"ud.private": unsafe.Offsetof(u.private), "ud.privateLen": unsafe.Offsetof(u.privateLen),
		"ud.way": unsafe.Offsetof(u.way), "ud.qpn": unsafe.Offsetof(u.qpn),
		"ud.qkey": unsafe.Offsetof(u.qkey), "ud": unsafe.Sizeof(u), "event": unsafe.Sizeof(e),
		"ahAttr":     uintptr(ibv.SizeAHAttr),
		"info.flags": unsafe.Offsetof(i.flags), "info.family": unsafe.Offsetof(i.family),
		"info.qpType": unsafe.Offsetof(i.qpType), "info.space": unsafe.Offsetof(i.space),
		"info.sourceLen": unsafe.Offsetof(i.sourceLen), "info.source": unsafe.Offsetof(i.source),
		"info.next": unsafe.Offsetof(i.next), "info": unsafe.Sizeof(i),
		"qpAttr": uintptr(ibv.SizeQPAttr), "storage": storage, "TCP": RC.portSpace(), "UDP": UD.portSpace(),
		"IB":      UC.portSpace(),
		"type.RC": uintptr(RC.qpType()), "type.UC": uintptr(UC.qpType()), "type.UD": uintptr(UD.qpType()),
		"passive":         passive,
		"AddressResolved": uintptr(AddressResolved), "AddressError": uintptr(AddressError),
		"RouteResolved": uintptr(RouteResolved),
		"RouteError":    uintptr(RouteError), "ConnectRequest": uintptr(ConnectRequest),
		"ConnectResponse": uintptr(ConnectResponse),
		"ConnectError":    uintptr(ConnectError), "Unreachable": uintptr(Unreachable), "Rejected": uintptr(Rejected),
		"Established":  uintptr(Established),
		"Disconnected": uintptr(Disconnected), "DeviceRemoved": uintptr(DeviceRemoved),
		"AddressChanged": uintptr(AddressChanged),
		"TimeWaitExit":   uintptr(TimeWaitExit),
		"option.ack":     optionACKTimeout,
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != len(ours) {
		t.Errorf("the header has %d entries, this test %d", len(lines), len(ours))
	}
	for _, l := range lines {
		name, theirs, _ := strings.Cut(l, " ")
		if o, ok := ours[name]; !ok || strconv.FormatUint(uint64(o), 10) != theirs {
			t.Errorf("%s: %d, the header has %s", name, o, theirs)
		}
	}
}
