/*
 * Just enough of PTX to know what a module holds: its version and target, its entries with the sizes of their parameters, and
 * its global variables ("PTX ISA", directives). Instructions are not looked at, and nothing is compiled.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

struct lexer { const char *p; int line; char word[256]; char *log; size_t n; };

/* The next word: a name with dots, or one character; comments and strings are passed over. False at the end. */
static bool next(struct lexer *l) {
    for (;;) {
        if (*l->p == '\n') l->line++;
        if (isspace((unsigned char)*l->p)) {
            l->p++;
        } else if (l->p[0] == '/' && l->p[1] == '/') {
            while (*l->p != 0 && *l->p != '\n') l->p++;
        } else if (l->p[0] == '/' && l->p[1] == '*') {
            for (l->p += 2; *l->p != 0 && !(l->p[0] == '*' && l->p[1] == '/'); l->p++)
                if (*l->p == '\n') l->line++;
            if (*l->p != 0) l->p += 2;
        } else if (*l->p == '"') {
            for (l->p++; *l->p != 0 && *l->p != '"'; l->p++)
                if (*l->p == '\n') l->line++;
            if (*l->p != 0) l->p++;
        } else {
            break;
        }
    }
    size_t n = 0;
    while (isalnum((unsigned char)*l->p) || (*l->p != 0 && strchr("_$%.", *l->p) != NULL)) {
        if (n + 1 < sizeof l->word) l->word[n++] = *l->p;
        l->p++;
    }
    if (n == 0 && *l->p != 0) l->word[n++] = *l->p++;
    l->word[n] = 0;
    return n > 0;
}

static CUresult fail(struct lexer *l, CUresult r, const char *what) {
    if (l->log != NULL && l->n > 0)
        snprintf(l->log, l->n, "ptx line %d: %s, found \"%s\" (the fake reads directives only)", l->line, what, l->word);
    return r;
}

static size_t type_size(const char *w) {
    static const struct { const char *name; size_t size; } types[] = {
        {".b8", 1},  {".u8", 1},  {".s8", 1},  {".b16", 2}, {".u16", 2}, {".s16", 2}, {".f16", 2},  {".b32", 4},
        {".u32", 4}, {".s32", 4}, {".f32", 4}, {".b64", 8}, {".u64", 8}, {".s64", 8}, {".f64", 8}, {".b128", 16},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, w) == 0) return types[i].size;
    return 0;
}

/* After .param or .global: attributes, type, name, [count]... Ends before the "," ")" "=" or ";" that follows, in word. */
static CUresult variable(struct lexer *l, size_t *size, size_t *align, char *name, size_t n) {
    size_t each = 0, count = 1;
    *align = 0;
    *name = 0;
    while (next(l)) {
        if (strcmp(l->word, ".align") == 0) {
            if (!next(l)) break;
            *align = strtoul(l->word, NULL, 0);
        } else if (*l->word == '.') {
            if (each == 0) each = type_size(l->word);
        } else if (*l->word == '[') {
            if (!next(l)) break;
            count *= strtoul(l->word, NULL, 0);
            if (!next(l) || *l->word != ']') return fail(l, CUDA_ERROR_INVALID_PTX, "expected ]");
        } else if (strchr(",)=;", *l->word) != NULL) {
            if (each == 0 || *name == 0) return fail(l, CUDA_ERROR_INVALID_PTX, "expected a type and a name before");
            *size = each * count;
            if (*align == 0) *align = each;
            return CUDA_SUCCESS;
        } else if (!isdigit((unsigned char)*l->word)) {
            snprintf(name, n, "%s", l->word);
        }
    }
    return fail(l, CUDA_ERROR_INVALID_PTX, "the text ends in a declaration");
}

static CUresult entry(struct lexer *l, module *m) {
    if (!next(l)) return fail(l, CUDA_ERROR_INVALID_PTX, "expected the name of an entry");
    m->entries = realloc(m->entries, (size_t)(m->nentries + 1) * sizeof *m->entries);
    if (m->entries == NULL) abort();
    struct entry *e = &m->entries[m->nentries++];
    *e = (struct entry){.name = strdup(l->word)};
    if (!next(l) || *l->word != '(') return *l->word == '{' || *l->word == '.' ? CUDA_SUCCESS : fail(l, CUDA_ERROR_INVALID_PTX,
        "expected (");
    while (next(l)) {
        char name[256];
        size_t size, align;
        if (*l->word == ')') return CUDA_SUCCESS;
        if (strcmp(l->word, ".param") != 0) return fail(l, CUDA_ERROR_INVALID_PTX, "expected .param");
        CUresult r = variable(l, &size, &align, name, sizeof name);
        if (r != CUDA_SUCCESS) return r;
        if (align == 0 || (align & (align - 1)) != 0) return fail(l, CUDA_ERROR_INVALID_PTX, "expected an alignment");
        e->params = realloc(e->params, (size_t)(e->nparams + 1) * sizeof *e->params);
        if (e->params == NULL) abort();
        e->args = (e->args + align - 1) & ~(align - 1);
        e->params[e->nparams++] = (param){size, e->args};
        e->args += size;
        if (*l->word == ')') return CUDA_SUCCESS;
    }
    return fail(l, CUDA_ERROR_INVALID_PTX, "the text ends in the parameters of an entry");
}

/* Fills m; the first mistake is told in log. Driver versions limit PTX versions ("PTX ISA", release notes). */
CUresult ptx_parse(const char *text, module *m, char *log, size_t n) {
    struct lexer l = {.p = text, .line = 1, .log = log, .n = n};
    bool version = false, target = false;
    int depth = 0;
    while (next(&l)) {
        CUresult r = CUDA_SUCCESS;
        if (*l.word == '{') depth++;
        if (*l.word == '}') depth--;
        if (strcmp(l.word, ".version") == 0) {
            int major, minor;
            if (!next(&l) || sscanf(l.word, "%d.%d", &major, &minor) != 2) return fail(&l, CUDA_ERROR_INVALID_PTX,
                "expected a version");
            m->ptx = major * 10 + minor;
            version = true;
        } else if (strcmp(l.word, ".target") == 0) {
            if (!next(&l) || sscanf(l.word, "sm_%d", &m->sm) != 1) return fail(&l, CUDA_ERROR_INVALID_PTX,
                "expected a target as sm_80");
            target = true;
        } else if (strcmp(l.word, ".entry") == 0) {
            r = entry(&l, m);
            if (*l.word == '{') depth++;
        } else if (depth == 0 && strcmp(l.word, ".global") == 0) {
            char name[256];
            size_t size, align;
            r = variable(&l, &size, &align, name, sizeof name);
            if (r == CUDA_SUCCESS && *l.word != '=') { /* C functions have constants of their own: an initialised global is not found */
                m->globals = realloc(m->globals, (size_t)(m->nglobals + 1) * sizeof *m->globals);
                if (m->globals == NULL) abort();
                m->globals[m->nglobals++] = (global){strdup(name), size, NULL};
            }
        }
        if (r != CUDA_SUCCESS) return r;
    }
    if (!version || !target) return fail(&l, CUDA_ERROR_INVALID_PTX, "expected .version and .target");
    if (depth != 0) return fail(&l, CUDA_ERROR_INVALID_PTX, "expected as many } as {");
    return CUDA_SUCCESS;
}
