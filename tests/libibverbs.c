/* A library in place of libibverbs.so.1, for tests: it answers as a file says, whose path is STATE.
 * Lines: "device NAME", "open NAME ERRNO", "query NAME ERRNO", "hang CALL NAME". */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct device { char name[64]; };
struct context { struct device *device; };

static struct device devices[64];

static int number_of(const char *verb, const char *name) {
    FILE *file = fopen(STATE, "r");
    char line[256], word[64], of[64];
    int number, found = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%63s %63s %d", word, of, &number) == 3 && !strcmp(word, verb) && !strcmp(of, name)) found = number;
    if (file) fclose(file);
    return found;
}

static void maybe_hang(const char *call, const char *name) {
    FILE *file = fopen(STATE, "r");
    char line[256], wanted[160];
    int hangs = 0;
    snprintf(wanted, sizeof wanted, "hang %s %s\n", call, name);
    while (file && fgets(line, sizeof line, file)) hangs |= !strcmp(line, wanted);
    if (file) fclose(file);
    while (hangs) pause();
}

struct device **ibv_get_device_list(int *count) {
    FILE *file = fopen(STATE, "r");
    struct device **list = calloc(65, sizeof *list);
    char line[256];
    *count = 0;
    while (file && *count < 64 && fgets(line, sizeof line, file))
        if (sscanf(line, "device %63s", devices[*count].name) == 1) { list[*count] = &devices[*count]; ++*count; }
    if (file) fclose(file);
    return list;
}

const char *ibv_get_device_name(struct device *device) { return device->name; }

struct context *ibv_open_device(struct device *device) {
    maybe_hang("ibv_open_device", device->name);
    if ((errno = number_of("open", device->name))) return NULL;
    struct context *context = malloc(sizeof *context);
    context->device = device;
    return context;
}

int ibv_query_device(struct context *context, char *attributes) {
    maybe_hang("ibv_query_device", context->device->name);
    memset(attributes, 1, 232);
    return number_of("query", context->device->name);
}

int ibv_close_device(struct context *context) { free(context); return 0; }
