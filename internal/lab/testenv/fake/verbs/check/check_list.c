/* What the conformance program consists of. */
#include "check.h"

extern const struct check checks_objects[], checks_rc[], checks_errors[], checks_events[], checks_windows[];

const struct check *const suites[] = {checks_objects, checks_rc, checks_errors, checks_events, checks_windows, NULL};
