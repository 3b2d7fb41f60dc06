/* What the scenarios use beyond verbs: the functions of the fake itself. */
#ifndef SCRIPTED_H
#define SCRIPTED_H

#include "check.h"

const char *penstock_fake_script(const char *text);
const char *penstock_fake_report(void);
uint64_t penstock_fake_count(const char *name);
int penstock_fake_pump(int n);

void script(const char *text);                 /* it must be right */
void reports(const char *text);                /* the report must have this in it; then everything is forgotten */
void counted(const char *name, uint64_t n);

#endif
