package ethtool

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// The structures are those of the kernel's headers.
func TestLayout(t *testing.T) {
	prog, err := testenv.Compile("ethtool-layout", []string{"testdata/layout.c"})
	if err != nil {
		testenv.Missing(t, "a C compiler with the kernel's headers", err)
	}
	out, err := exec.Command(prog).Output()
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]int{"specValue": specValue, "specValueExt": specValueExt, "specMask": specMask,
		"specMaskExt": specMaskExt,
		"specCookie":  specCookie, "specLocation": specLocation, "specLen": specLen, "rxnfcFlowType": rxnfcFlowType,
		"rxnfcData": rxnfcData,
		"rxnfcSpec": rxnfcSpec, "rxnfcCount": rxnfcCount, "rxnfcPlaces": rxnfcPlaces, "rxnfcLen": rxnfcLen,
		"rssHeader": rssHeader,
		"rssTable":  8, "rssFunction": 16, "driver": 196, "driverBus": 100, "linkHeader": 48, "linkWords": 15,
		"channels": 36, "combined": 32,
		"rings": 36, "ringTx": 32, "coalesce": 4 + 4*len(Coalesce{}.rest), "adaptiveRx": 4 + 4*coalesceAdaptiveRx,
		"txMicros": 4 + 4*coalesceTxMicros, "timestamps": 44, "rxFilters": 4 + 4*6, "featuresBlock": 16,
		"maxMTU": linkMaxMTU,
		"ip6TOS": 36, "usr4Proto": 14, "usr6Proto": 37, "extVLAN": 10, "extMAC": 2, "cmdSetRSS": cmdSetRSS,
		"cmdInsertRule": cmdInsertRule,
		"cmdTimestamps": cmdTimestamps, "cmdLinkSettings": cmdLinkSettings, "cmdSetFeatures": cmdSetFeatures,
		"pause": 16, "pauseRx": 8, "stats": 8, "cmdPause": cmdPause, "cmdCounters": cmdCounters,
		"stringsStats": stringsStats,
		"rtmGetDCB":    rtmGetDCB, "dcbHeader": dcbHeader, "dcbIEEEGet": dcbIEEEGet, "dcbName": dcbName,
		"dcbIEEE": dcbIEEE, "dcbPFC": dcbPFC,
		"dcbAppTable": dcbAppTable, "dcbApp": dcbApp, "pfcLen": pfcLen, "pfcEnabled": pfcEnabled,
		"pfcRequests":    pfcRequests,
		"pfcIndications": pfcIndications, "appLen": appLen, "appSelector": appSelector, "appPriority": appPriority,
		"appProtocol": appProtocol,
		"appDSCP":     appDSCP}
	seen := 0
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		want, err := strconv.Atoi(f[1])
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := have[f[0]]; !ok || got != want {
			t.Errorf("%s is %d here, %d in the kernel's headers", f[0], got, want)
		}
		seen++
	}
	if seen != len(have) {
		t.Errorf("%d of %d compared", seen, len(have))
	}
}
