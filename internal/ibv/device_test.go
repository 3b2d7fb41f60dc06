package ibv

import "testing"

// deviceTests run on any device with RoCE: on the fake here, on Soft-RoCE in a guest.
var deviceTests = []struct {
	name string
	run  func(t *testing.T, w *world)
}{
	{"SendRecv", testSendRecv},
	{"WriteRead", testWriteRead},
	{"Atomics", testAtomics},
	{"ScatterGather", testScatterGather},
	{"Inline", testInline},
	{"Unsignaled", testUnsignaled},
	{"HalfRefused", testHalfRefused},
	{"RecvFull", testRecvFull},
	{"Rewind", testRewind},
	{"Reconnect", testReconnect},
	{"RemoteErrors", testRemoteErrors},
	{"LocalErrors", testLocalErrors},
	{"Retries", testRetries},
	{"Flush", testFlush},
	{"Datagrams", testDatagrams},
	{"DatagramRefused", testDatagramRefused},
	{"SRQ", testSRQ},
	{"Window", testWindow},
	{"Addresses", testAddresses},
	{"Transitions", testTransitions},
	{"Query", testQuery},
	{"Attributes", testAttributes},
	{"Channel", testChannel},
	{"CloseWithEvents", testCloseWithEvents},
	{"WakeUps", testWakeUps},
}

func TestDevice(t *testing.T) {
	for _, mode := range []string{"mode post", "mode wire", "mode wire; delay 50us; seed 3"} {
		t.Run(mode, func(t *testing.T) {
			for _, d := range deviceTests {
				t.Run(d.name, func(t *testing.T) { d.run(t, fakeWorld(t, mode)) })
			}
		})
	}
}
