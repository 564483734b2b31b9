/*
 * A simulated libnvidia-ml.so.1: what it answers stands in a text file that may be changed while it runs.
 *
 * For tests, and for whoever wants to see vitald at work on a machine without a GPU. README.md lists the keys. Whoever loads it
 * can tell: it exports `vitald_simulated_nvml`.
 *
 *   state      read again whenever the file named by NVML_SIM_STATE changes
 *   enter      what every call goes through: handles, lost GPUs, injected delays, hangs, crashes and errors
 *   calls      one function each, most of them made from a table
 *   events     lines appended to <state>.events
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT const char vitald_simulated_nvml[] = "simulated";

enum { OK, UNINITIALIZED, INVALID, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10, LOST = 15, VERSION = 25 };
enum { MOST_GPUS = 64, VALUE = 2048, NO_GPU = -1 };
typedef uint32_t u32;
typedef uint64_t u64;

/* --- structs of the interface that have more than one field (64 bit, little endian) */

typedef struct { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { Pci pci; char uuid[80]; } Excluded;
typedef struct { u64 total, free, used; } Memory;
typedef struct { u32 version; u64 total, reserved, free, used; } MemoryV2;
typedef struct { u32 gpu, memory; } Utilization;
typedef struct { u32 id, scope; int64_t timestamp, latency; u32 type, ret; union { double f64; u32 u32_; u64 u64_; int64_t i64; int32_t i32; } value; } Field;
typedef struct { u32 version; u64 counts[11]; u32 exceeded; } Sram;
typedef struct { u32 max, high, partial, low, none; } Histogram;
typedef struct { u32 version, channel, tpc; } Repair;
typedef struct { u32 version; int32_t margin; } Margin;
typedef struct { u32 version, sensor; int32_t temperature; } Temperature;
typedef struct { u32 version; uint8_t ib_guid[16]; char chassis[16]; uint8_t slot, tray, host, peer, module; } Platform;
typedef struct { u32 version; uint8_t uuid[16]; u32 status, clique, state, mask; uint8_t summary; } Fabric;
typedef struct { u32 pid; u64 used; u32 gi, ci; } Process;
typedef struct { void *device; u64 type, data; u32 gi, ci; } EventData;
typedef struct { u32 version, supported; } GpmSupport;
typedef struct { int gpu, instance, filled; struct timespec taken; } GpmSample;
typedef struct { u32 id, ret; double value; const char *short_name, *long_name, *unit; } GpmMetric;
typedef struct { u32 version, count; GpmSample *first, *second; GpmMetric metrics[]; } GpmMetricsGet;
_Static_assert(sizeof(Pci) == 68 && sizeof(Field) == 40 && sizeof(Sram) == 104 && sizeof(Fabric) == 40, "layout");
_Static_assert(sizeof(Process) == 24 && sizeof(EventData) == 32 && sizeof(MemoryV2) == 40, "layout");
_Static_assert(sizeof(GpmMetric) == 40 && sizeof(GpmMetricsGet) == 24, "layout");

/* --- state */

typedef struct { char *key, *value; } Entry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Entry *table;
static size_t slots;
static char *text_of_file;
static struct stat read_at;
static int initialized;

static size_t hash(const char *key) {
    size_t sum = 1469598103934665603u;
    for (; *key; key++) sum = (sum ^ (unsigned char)*key) * 1099511628211u;
    return sum;
}

static Entry *slot(const char *key) {
    size_t at = hash(key) & (slots - 1);
    while (table[at].key && strcmp(table[at].key, key)) at = (at + 1) & (slots - 1);
    return &table[at];
}

static char *trimmed(char *text) {
    while (*text == ' ' || *text == '\t') text++;
    char *end = text + strlen(text);
    while (end > text && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r')) *--end = 0;
    return text;
}

static void parse(char *text, size_t lines) {
    free(table);
    free(text_of_file);
    for (slots = 64; slots < lines * 2; slots *= 2) {}
    table = calloc(slots, sizeof *table);
    text_of_file = text;
    char *rest = text, *line;
    while ((line = strsep(&rest, "\n"))) {
        char *value = strchr(line, '=');
        if (*line == '#' || !value) continue;
        *value++ = 0;
        char *key = trimmed(line);
        Entry *entry = slot(key);
        entry->key = key;
        entry->value = trimmed(value);
    }
}

/* Under the lock. A file that cannot be read leaves what was read before. */
static void refresh(void) {
    const char *path = getenv("NVML_SIM_STATE");
    struct stat now;
    if (!slots) parse(strdup(""), 0);
    if (!path || stat(path, &now)) return;
    if (now.st_ino == read_at.st_ino && now.st_size == read_at.st_size && now.st_mtim.tv_sec == read_at.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == read_at.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    fstat(fileno(file), &now);
    char *text = malloc((size_t)now.st_size + 1);
    size_t size = fread(text, 1, (size_t)now.st_size, file), lines = 1;
    fclose(file);
    text[size] = 0;
    for (char *at = text; *at; at++) lines += *at == '\n';
    parse(text, lines);
    read_at = now;
}

/* The value of a key, of a GPU or (NO_GPU) of the whole; what stands for every GPU counts where the GPU has none of its own. */
static int find_locked(int gpu, const char *key, char out[VALUE]) {
    char name[256];
    const char *value = NULL;
    if (gpu != NO_GPU) {
        snprintf(name, sizeof name, "gpu.%d.%s", gpu, key);
        value = slot(name)->value;
        if (!value) {
            snprintf(name, sizeof name, "gpu.*.%s", key);
            value = slot(name)->value;
        }
    } else {
        value = slot(key)->value;
    }
    if (value) snprintf(out, VALUE, "%s", value);
    return value != NULL;
}

static int find(int gpu, const char *key, char out[VALUE]) {
    pthread_mutex_lock(&lock);
    refresh();
    int found = find_locked(gpu, key, out);
    pthread_mutex_unlock(&lock);
    return found;
}

static int64_t number_or(int gpu, const char *key, int64_t otherwise) {
    char value[VALUE];
    return find(gpu, key, value) && *value ? (int64_t)strtoull(value, NULL, 0) : otherwise;
}

/* The number plus what its rate has added since the file was written. Signed numbers pass through u64 unharmed. */
static int counted(int gpu, const char *key, u64 *out) {
    char value[VALUE], rate[VALUE], name[256];
    snprintf(name, sizeof name, "rate.%s", key);
    pthread_mutex_lock(&lock);
    refresh();
    int found = find_locked(gpu, key, value), growing = find_locked(gpu, name, rate);
    struct timespec since = read_at.st_mtim;
    pthread_mutex_unlock(&lock);
    if (!found || !*value) return 0;
    *out = *value == '-' ? (u64)strtoll(value, NULL, 0) : strtoull(value, NULL, 0);
    if (growing) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        double age = (double)(now.tv_sec - since.tv_sec) + (double)(now.tv_nsec - since.tv_nsec) / 1e9;
        if (age > 0) *out += (u64)(age * strtod(rate, NULL));
    }
    return 1;
}

/* Several numbers in one value; how many were there. */
static int numbers(int gpu, const char *key, u64 *out, int most) {
    char value[VALUE], *rest = value, *word;
    int count = 0;
    if (!find(gpu, key, value)) return -1;
    while (count < most && (word = strsep(&rest, " ")))
        if (*word) out[count++] = strtoull(word, NULL, 0);
    return count;
}

static int gpu_count(void) {
    int64_t count = number_or(NO_GPU, "count", 0);
    return count < 0 ? 0 : count > MOST_GPUS ? MOST_GPUS : (int)count;
}

/* --- handles */

/* Neither absent nor excluded by the driver's configuration. */
static int present(int gpu) { return !number_or(gpu, "absent", 0) && !number_or(gpu, "excluded", 0); }

/* `mig`: the index of the MIG instance; WHOLE for the GPU itself. */
enum { WHOLE = -1 };
typedef struct Handle { int gpu, mig; int64_t epoch, own_epoch; struct Handle *next; } Handle;
static Handle *handles;

static Handle *handle_of_instance(int gpu, int mig) {
    int64_t epoch = number_or(NO_GPU, "driver.epoch", 0), own = number_or(gpu, "epoch", 0);
    pthread_mutex_lock(&lock);
    Handle *one = handles;
    while (one && (one->gpu != gpu || one->mig != mig || one->epoch != epoch || one->own_epoch != own)) one = one->next;
    if (!one) {
        one = malloc(sizeof *one);
        *one = (Handle){gpu, mig, epoch, own, handles};
        handles = one;
    }
    pthread_mutex_unlock(&lock);
    return one;
}

static Handle *handle_of(int gpu) { return handle_of_instance(gpu, WHOLE); }

typedef struct { u32 gi, ci; char profile[64], uuid[96]; u64 total, used; } Mig;

/* `mig.<n> = gi ci [profile [total used [uuid]]]`; 0 if there is none. */
static int instance_of(int gpu, int mig, Mig *out) {
    char key[64], value[VALUE];
    snprintf(key, sizeof key, "mig.%d", mig);
    memset(out, 0, sizeof *out);
    if (!find(gpu, key, value)) return 0;
    snprintf(out->uuid, sizeof out->uuid, "MIG-51a10000-0000-5000-8000-%06x%06x", gpu, mig);
    strcpy(out->profile, "1g.10gb");
    unsigned long long total = 0, used = 0;
    int found = sscanf(value, "%u %u %63s %llu %llu %95s", &out->gi, &out->ci, out->profile, &total, &used, out->uuid);
    out->total = total, out->used = used;
    return found >= 2;
}

/* Its GPU or the driver was reset since, or the GPU or the MIG instance is not there any more. */
static int stale(const Handle *handle) {
    Mig instance;
    if (handle->mig != WHOLE && !instance_of(handle->gpu, handle->mig, &instance)) return 1;
    return !present(handle->gpu) || handle->epoch != number_or(NO_GPU, "driver.epoch", 0) || handle->own_epoch != number_or(handle->gpu, "epoch", 0);
}

/* --- what every call goes through */

typedef struct { const char *name; int gpu, ret; struct timespec began; } Call;

/* An injection for this call: by its name, or for any; of this GPU, or of all calls. */
static int injected(const Call *call, const char *kind, char out[VALUE]) {
    char key[256];
    const char *names[] = {call->name, "*"};
    for (int at = 0; at < 2; at++) {
        snprintf(key, sizeof key, "%s.%s", kind, names[at]);
        if (call->gpu != NO_GPU && find(call->gpu, key, out)) return 1;
        if (find(NO_GPU, key, out)) return 1;
    }
    return 0;
}

static void nap(void) { nanosleep(&(struct timespec){0, 20000000}, NULL); }

static void hang(const Call *call, const char *how) {
    char kind[VALUE];
    if (!strcmp(how, "fork")) {
        /* The thread that called vfork waits in the kernel (state D) until the child is done with its memory. */
        pid_t child = vfork();
        if (!child) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            while (injected(call, "hang", kind)) nap();
            _exit(0);
        }
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR) {}
    } else if (!strcmp(how, "spin")) {
        while (injected(call, "hang", kind)) {}
    } else {
        while (injected(call, "hang", kind)) nap();
    }
}

static struct { char key[128], value[32]; int calls; } after[256];

/* `after.<call> = n:code`: n times as usual, then this code. Another value begins anew. */
static int used_up(const Call *call, const char *value) {
    char key[128];
    int code = OK;
    snprintf(key, sizeof key, "%d.%s", call->gpu, call->name);
    pthread_mutex_lock(&lock);
    for (int at = 0; at < 256; at++) {
        if (after[at].key[0] && strcmp(after[at].key, key)) continue;
        snprintf(after[at].key, sizeof after[at].key, "%s", key);
        if (strncmp(after[at].value, value, sizeof after[at].value - 1)) {
            snprintf(after[at].value, sizeof after[at].value, "%.31s", value);
            after[at].calls = 0;
        }
        char *colon;
        long most = strtol(value, &colon, 0);
        if (++after[at].calls > most && *colon == ':') code = atoi(colon + 1);
        break;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static void leave(Call *call) {
    const char *path = getenv("NVML_SIM_TRACE");
    if (!path) return;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    FILE *file = fopen(path, "a");
    if (!file) return;
    long us = (now.tv_sec - call->began.tv_sec) * 1000000 + (now.tv_nsec - call->began.tv_nsec) / 1000;
    fprintf(file, "%lld %d %ld %s %d %d %ld\n", (long long)call->began.tv_sec * 1000000000 + call->began.tv_nsec, (int)getpid(),
            (long)syscall(SYS_gettid), call->name, call->gpu, call->ret, us);
    fclose(file);
}

/* `must`: the library has to be initialised. Returns the call with the code that it must answer at once, or OK. */
static Call enter(const char *name, int gpu, const Handle *handle, int must) {
    Call call = {name, gpu, OK, {0, 0}};
    char value[VALUE];
    clock_gettime(CLOCK_MONOTONIC, &call.began);
    if (must && !__atomic_load_n(&initialized, __ATOMIC_SEQ_CST)) { call.ret = UNINITIALIZED; return call; }
    if (injected(&call, "delay_us", value)) {
        long us = atol(value);
        nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
    }
    if (injected(&call, "hang", value)) hang(&call, value);
    if (injected(&call, "crash", value)) {
        if (!strcmp(value, "abort")) abort();
        raise(SIGSEGV);
    }
    if (handle && stale(handle)) call.ret = INVALID;
    else if (handle && number_or(handle->gpu, "lost", 0)) call.ret = LOST;
    else if (injected(&call, "after", value)) call.ret = used_up(&call, value);
    if (!call.ret && injected(&call, "ret", value)) call.ret = atoi(value);
    return call;
}

#define CALL_WITH(gpu, handle, must) \
    __attribute__((cleanup(leave))) Call call = enter(__func__, gpu, handle, must); \
    if (call.ret) return call.ret
#define CALL(must) CALL_WITH(NO_GPU, NULL, must)
/* Look-ups take no handle, but they are about a GPU: what is injected for it counts. */
#define CALL_FOR(gpu) CALL_WITH(gpu, NULL, 1)
#define ANY_DEVICE_CALL(handle) \
    if (!handle) return INVALID; \
    CALL_WITH(handle->gpu, handle, 1)
/* Most calls are about a whole GPU. */
#define DEVICE_CALL(handle) \
    ANY_DEVICE_CALL(handle); \
    if (handle->mig != WHOLE) return call.ret = INVALID
#define ANSWER(code) return call.ret = (code)

static int put_text(int gpu, const char *key, char *out, u32 length) {
    char value[VALUE];
    if (!find(gpu, key, value)) return NOT_SUPPORTED;
    if (strlen(value) + 1 > length) return TOO_SMALL;
    strcpy(out, value);
    return OK;
}

static int put_u32(int gpu, const char *key, u32 *out) {
    u64 value;
    if (!counted(gpu, key, &value)) return NOT_SUPPORTED;
    *out = (u32)value;
    return OK;
}

static int put_u64(int gpu, const char *key, u64 *out) { return counted(gpu, key, out) ? OK : NOT_SUPPORTED; }

static int put_two(int gpu, const char *key, u32 *one, u32 *two) {
    u64 both[2];
    if (numbers(gpu, key, both, 2) != 2) return NOT_SUPPORTED;
    *one = (u32)both[0];
    *two = (u32)both[1];
    return OK;
}

/* --- library and system */

EXPORT int nvmlInitWithFlags(u32 flags) {
    (void)flags;
    CALL(0);
    __atomic_add_fetch(&initialized, 1, __ATOMIC_SEQ_CST);
    ANSWER(OK);
}

EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

EXPORT int nvmlShutdown(void) {
    CALL(1);
    __atomic_sub_fetch(&initialized, 1, __ATOMIC_SEQ_CST);
    ANSWER(OK);
}

EXPORT const char *nvmlErrorString(int code) {
    static const char *names[] = {"Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions"};
    return code >= 0 && code < 5 ? names[code] : code == LOST ? "GPU is lost" : "Error of the simulated library";
}

EXPORT int nvmlSystemGetDriverVersion(char *out, u32 length) { CALL(1); ANSWER(put_text(NO_GPU, "driver.version", out, length)); }
EXPORT int nvmlSystemGetNVMLVersion(char *out, u32 length) { CALL(1); ANSWER(put_text(NO_GPU, "driver.nvml", out, length)); }
EXPORT int nvmlSystemGetCudaDriverVersion(u32 *out) { CALL(1); ANSWER(put_u32(NO_GPU, "driver.cuda", out)); }
EXPORT int nvmlSystemGetCudaDriverVersion_v2(u32 *out) { CALL(1); ANSWER(put_u32(NO_GPU, "driver.cuda", out)); }

/* --- handles */

EXPORT int nvmlDeviceGetCount_v2(u32 *out) {
    CALL(1);
    *out = 0;
    for (int gpu = 0; gpu < gpu_count(); gpu++) *out += present(gpu);
    ANSWER(OK);
}

/* A GPU that is lost answers a look-up with 15, or with what `lookup_ret` says. */
static int look_up(int gpu, Handle **out) {
    int64_t code = number_or(gpu, "lookup_ret", number_or(gpu, "lost", 0) ? LOST : OK);
    if (!present(gpu)) return NOT_FOUND;
    if (!code) *out = handle_of(gpu);
    return (int)code;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(u32 index, Handle **out) {
    int gpu = 0;
    for (u32 left = index; gpu < gpu_count(); gpu++)
        if (present(gpu) && !left--) break;
    if (gpu >= gpu_count()) gpu = NO_GPU;
    CALL_FOR(gpu);
    ANSWER(gpu == NO_GPU ? INVALID : look_up(gpu, out));
}

static int by_text(const char *key, const char *wanted) {
    char value[VALUE];
    for (int gpu = 0; gpu < gpu_count(); gpu++)
        if (find(gpu, key, value) && !strcmp(value, wanted)) return gpu;
    return NO_GPU;
}

/* "0000:19:00.0" and "00000000:19:00.0" are one address. */
static int by_address(const char *wanted) {
    char value[VALUE];
    unsigned want[4] = {0, 0, 0, 0}, have[4];
    if (sscanf(wanted, "%x:%x:%x.%x", &want[0], &want[1], &want[2], &want[3]) < 3) return NO_GPU;
    for (int gpu = 0; gpu < gpu_count(); gpu++) {
        memset(have, 0, sizeof have);
        if (find(gpu, "busid", value) && sscanf(value, "%x:%x:%x.%x", &have[0], &have[1], &have[2], &have[3]) >= 3 &&
            !memcmp(want, have, sizeof have))
            return gpu;
    }
    return NO_GPU;
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *address, Handle **out) {
    int gpu = by_address(address);
    CALL_FOR(gpu);
    ANSWER(gpu == NO_GPU ? NOT_FOUND : look_up(gpu, out));
}

/* As the driver does it: searching may touch the others, and one that is lost fails it for all. */
static int searched(int gpu, Handle **out) {
    for (int other = 0; other < gpu_count(); other++)
        if (number_or(other, "lost", 0) && present(other)) return LOST;
    return gpu == NO_GPU ? NOT_FOUND : look_up(gpu, out);
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, Handle **out) {
    int gpu = by_text("uuid", uuid);
    CALL_FOR(gpu);
    ANSWER(searched(gpu, out));
}

EXPORT int nvmlDeviceGetHandleBySerial(const char *serial, Handle **out) {
    int gpu = by_text("serial", serial);
    CALL_FOR(gpu);
    ANSWER(searched(gpu, out));
}

/* --- one value each: name, key */

#define TEXTS(X) \
    X(nvmlDeviceGetSerial, "serial") X(nvmlDeviceGetBoardPartNumber, "part") \
    X(nvmlDeviceGetVbiosVersion, "vbios") X(nvmlDeviceGetInforomImageVersion, "inforom")
#define NUMBERS(X) \
    X(nvmlDeviceGetMinorNumber, "minor") X(nvmlDeviceGetModuleId, "module") X(nvmlDeviceGetBoardId, "board_id") \
    X(nvmlDeviceGetArchitecture, "arch") X(nvmlDeviceGetBrand, "brand") X(nvmlDeviceGetPersistenceMode, "persistence") \
    X(nvmlDeviceGetPowerUsage, "power_mw") X(nvmlDeviceGetEnforcedPowerLimit, "limit_mw") \
    X(nvmlDeviceGetPowerManagementLimit, "limit_mw") X(nvmlDeviceGetPowerManagementDefaultLimit, "limit_default_mw") \
    X(nvmlDeviceGetPerformanceState, "pstate") X(nvmlDeviceGetCurrPcieLinkGeneration, "pcie.gen") \
    X(nvmlDeviceGetMaxPcieLinkGeneration, "pcie.gen_max") X(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie.gen_gpu_max") \
    X(nvmlDeviceGetCurrPcieLinkWidth, "pcie.width") X(nvmlDeviceGetMaxPcieLinkWidth, "pcie.width_max") \
    X(nvmlDeviceGetPcieReplayCounter, "pcie.replay") X(nvmlDeviceGetRetiredPagesPendingStatus, "pages.pending") \
    X(nvmlDeviceGetMaxMigDeviceCount, "mig_max")
#define LONG_NUMBERS(X) \
    X(nvmlDeviceGetTotalEnergyConsumption, "energy_mj") X(nvmlDeviceGetCurrentClocksEventReasons, "throttle") \
    X(nvmlDeviceGetCurrentClocksThrottleReasons, "throttle") X(nvmlDeviceGetSupportedEventTypes, "events_mask")
#define PAIRS(X) X(nvmlDeviceGetEccMode, "ecc_mode") X(nvmlDeviceGetMigMode, "mig_mode") X(nvmlDeviceGetCudaComputeCapability, "cc")

#define TEXT(fn, key) EXPORT int fn(Handle *handle, char *out, u32 length) { DEVICE_CALL(handle); ANSWER(put_text(handle->gpu, key, out, length)); }
#define NUMBER(fn, key) EXPORT int fn(Handle *handle, u32 *out) { DEVICE_CALL(handle); ANSWER(put_u32(handle->gpu, key, out)); }
#define LONG_NUMBER(fn, key) EXPORT int fn(Handle *handle, u64 *out) { DEVICE_CALL(handle); ANSWER(put_u64(handle->gpu, key, out)); }
#define PAIR(fn, key) EXPORT int fn(Handle *handle, u32 *one, u32 *two) { DEVICE_CALL(handle); ANSWER(put_two(handle->gpu, key, one, two)); }
TEXTS(TEXT)
NUMBERS(NUMBER)
LONG_NUMBERS(LONG_NUMBER)
PAIRS(PAIR)

static int put_formatted(char *out, u32 length, const char *first, const char *second) {
    return snprintf(out, length, "%s%s", first, second) >= (int)length ? TOO_SMALL : OK;
}

EXPORT int nvmlDeviceGetName(Handle *handle, char *out, u32 length) {
    ANY_DEVICE_CALL(handle);
    Mig mig;
    char name[VALUE];
    if (handle->mig == WHOLE) ANSWER(put_text(handle->gpu, "name", out, length));
    if (!find(handle->gpu, "name", name) || !instance_of(handle->gpu, handle->mig, &mig)) ANSWER(NOT_SUPPORTED);
    snprintf(name + strlen(name), sizeof name - strlen(name), " MIG ");
    ANSWER(put_formatted(out, length, name, mig.profile));
}

EXPORT int nvmlDeviceGetUUID(Handle *handle, char *out, u32 length) {
    ANY_DEVICE_CALL(handle);
    Mig mig;
    if (handle->mig == WHOLE) ANSWER(put_text(handle->gpu, "uuid", out, length));
    ANSWER(instance_of(handle->gpu, handle->mig, &mig) ? put_formatted(out, length, mig.uuid, "") : NOT_FOUND);
}

/* With a number in the question, which is part of the key. */
#define INDEXED(X) \
    X(nvmlDeviceGetTemperatureThreshold, "threshold.%u") X(nvmlDeviceGetClockInfo, "clock.%u") X(nvmlDeviceGetMaxClockInfo, "max_clock.%u") \
    X(nvmlDeviceGetNvLinkState, "nvlink.%u.state") X(nvmlDeviceGetNvLinkVersion, "nvlink.%u.version") \
    X(nvmlDeviceGetNvLinkRemoteDeviceType, "nvlink.%u.remote")
#define BY_INDEX(fn, format) \
    EXPORT int fn(Handle *handle, u32 index, u32 *out) { \
        DEVICE_CALL(handle); \
        char key[64]; \
        snprintf(key, sizeof key, format, index); \
        ANSWER(put_u32(handle->gpu, key, out)); \
    }
INDEXED(BY_INDEX)

EXPORT int nvmlDeviceGetIndex(Handle *handle, u32 *out) {
    DEVICE_CALL(handle);
    *out = 0;
    for (int gpu = 0; gpu < handle->gpu; gpu++) *out += present(gpu);
    ANSWER(OK);
}

static int pci_of(int gpu, Pci *out) {
    char value[VALUE];
    unsigned function = 0;
    if (!find(gpu, "busid", value)) return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    if (sscanf(value, "%x:%x:%x.%x", &out->domain, &out->bus, &out->device, &function) < 3) return 999;
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.%X", out->domain, out->bus & 0xff, out->device & 0xff, function & 0xf);
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.%X", out->domain & 0xffff, out->bus & 0xff, out->device & 0xff, function & 0xf);
    out->id = (u32)number_or(gpu, "pci_device_id", 0);
    return OK;
}

EXPORT int nvmlDeviceGetPciInfo_v3(Handle *handle, Pci *out) {
    DEVICE_CALL(handle);
    ANSWER(pci_of(handle->gpu, out));
}

EXPORT int nvmlGetExcludedDeviceCount(u32 *out) {
    CALL(1);
    *out = 0;
    for (int gpu = 0; gpu < gpu_count(); gpu++) *out += number_or(gpu, "excluded", 0) != 0;
    ANSWER(OK);
}

EXPORT int nvmlGetExcludedDeviceInfoByIndex(u32 index, Excluded *out) {
    CALL(1);
    for (int gpu = 0; gpu < gpu_count(); gpu++) {
        if (!number_or(gpu, "excluded", 0) || index--) continue;
        put_text(gpu, "uuid", out->uuid, sizeof out->uuid);
        ANSWER(pci_of(gpu, &out->pci));
    }
    ANSWER(INVALID);
}

EXPORT int nvmlDeviceGetTemperature(Handle *handle, u32 sensor, u32 *out) {
    DEVICE_CALL(handle);
    ANSWER(sensor ? INVALID : put_u32(handle->gpu, "temp_c", out));
}

EXPORT int nvmlDeviceGetTemperatureV(Handle *handle, Temperature *out) {
    DEVICE_CALL(handle);
    if (out->version != 0x0100000C) ANSWER(VERSION);
    ANSWER(out->sensor ? INVALID : put_u32(handle->gpu, "temp_c", (u32 *)&out->temperature));
}

EXPORT int nvmlDeviceGetMarginTemperature(Handle *handle, Margin *out) {
    DEVICE_CALL(handle);
    if (out->version != 0x01000008) ANSWER(VERSION);
    ANSWER(put_u32(handle->gpu, "margin_c", (u32 *)&out->margin));
}

EXPORT int nvmlDeviceGetPlatformInfo(Handle *handle, Platform *out) {
    DEVICE_CALL(handle);
    char value[VALUE];
    unsigned slot, tray, host;
    int newest = (int)number_or(NO_GPU, "abi.platform_max", 2), version = (int)(out->version >> 24);
    if ((out->version != 0x0100002C && out->version != 0x0200002C) || version > newest) ANSWER(VERSION);
    if (!find(handle->gpu, "platform", value)) ANSWER(NOT_SUPPORTED);
    memset(out->chassis, 0, sizeof out->chassis);
    if (sscanf(value, "%15s %u %u %u", out->chassis, &slot, &tray, &host) != 4) ANSWER(999);
    out->slot = (uint8_t)slot, out->tray = (uint8_t)tray, out->host = (uint8_t)host;
    ANSWER(OK);
}

/* NVML: "On MIG-enabled GPUs, querying device utilization rates is not currently supported", and the same of encoder and decoder. */
static int in_mig_mode(int gpu) {
    u64 modes[2] = {0, 0};
    return numbers(gpu, "mig_mode", modes, 2) > 0 && modes[0];
}

EXPORT int nvmlDeviceGetUtilizationRates(Handle *handle, Utilization *out) {
    DEVICE_CALL(handle);
    if (in_mig_mode(handle->gpu)) ANSWER(NOT_SUPPORTED);
    ANSWER(put_two(handle->gpu, "utilization", &out->gpu, &out->memory));
}

EXPORT int nvmlDeviceGetEncoderUtilization(Handle *handle, u32 *percent, u32 *period_us) {
    DEVICE_CALL(handle);
    ANSWER(in_mig_mode(handle->gpu) ? NOT_SUPPORTED : put_two(handle->gpu, "encoder", percent, period_us));
}

EXPORT int nvmlDeviceGetDecoderUtilization(Handle *handle, u32 *percent, u32 *period_us) {
    DEVICE_CALL(handle);
    ANSWER(in_mig_mode(handle->gpu) ? NOT_SUPPORTED : put_two(handle->gpu, "decoder", percent, period_us));
}

/* Total, used, reserved: of the GPU, or of a MIG instance. */
static int memory_of(const Handle *handle, u64 out[3]) {
    Mig mig;
    memset(out, 0, 3 * sizeof *out);
    if (handle->mig == WHOLE) return numbers(handle->gpu, "memory", out, 3) < 2 ? NOT_SUPPORTED : OK;
    if (!instance_of(handle->gpu, handle->mig, &mig) || !mig.total) return NOT_SUPPORTED;
    out[0] = mig.total, out[1] = mig.used;
    return OK;
}

EXPORT int nvmlDeviceGetMemoryInfo(Handle *handle, Memory *out) {
    ANY_DEVICE_CALL(handle);
    u64 all[3];
    int code = memory_of(handle, all);
    if (!code) *out = (Memory){all[0], all[0] - all[1] - all[2], all[1] + all[2]};
    ANSWER(code);
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(Handle *handle, MemoryV2 *out) {
    ANY_DEVICE_CALL(handle);
    u64 all[3];
    if (out->version != 0x02000028) ANSWER(VERSION);
    int code = memory_of(handle, all);
    if (!code) *out = (MemoryV2){out->version, all[0], all[2], all[0] - all[1] - all[2], all[1]};
    ANSWER(code);
}

/* --- memory errors */

static int ecc(int gpu, u32 kind, u32 counter, const char *where, u64 *out) {
    char key[64];
    if (kind > 1 || counter > 1) return INVALID;
    snprintf(key, sizeof key, "ecc.%s.%s.%s", kind ? "unc" : "cor", counter ? "agg" : "vol", where);
    return put_u64(gpu, key, out);
}

EXPORT int nvmlDeviceGetTotalEccErrors(Handle *handle, u32 kind, u32 counter, u64 *out) {
    DEVICE_CALL(handle);
    ANSWER(ecc(handle->gpu, kind, counter, "total", out));
}

EXPORT int nvmlDeviceGetMemoryErrorCounter(Handle *handle, u32 kind, u32 counter, u32 where, u64 *out) {
    static const char *places[] = {"l1", "l2", "dram", "reg", "tex", "shm", "cbu", "sram"};
    DEVICE_CALL(handle);
    ANSWER(where > 7 ? INVALID : ecc(handle->gpu, kind, counter, places[where], out));
}

EXPORT int nvmlDeviceGetSramEccErrorStatus(Handle *handle, Sram *out) {
    DEVICE_CALL(handle);
    u64 all[12];
    if (out->version != 0x01000068) ANSWER(VERSION);
    if (numbers(handle->gpu, "sram", all, 12) != 12) ANSWER(NOT_SUPPORTED);
    if (!number_or(handle->gpu, "privileged", geteuid() == 0)) ANSWER(NO_PERMISSION);
    memcpy(out->counts, all, sizeof out->counts);
    out->exceeded = (u32)all[11];
    ANSWER(OK);
}

EXPORT int nvmlDeviceGetRemappedRows(Handle *handle, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failure) {
    DEVICE_CALL(handle);
    u64 all[4];
    if (numbers(handle->gpu, "remap", all, 4) != 4) ANSWER(NOT_SUPPORTED);
    *corrected = (u32)all[0], *uncorrected = (u32)all[1], *pending = (u32)all[2], *failure = (u32)all[3];
    ANSWER(OK);
}

EXPORT int nvmlDeviceGetRowRemapperHistogram(Handle *handle, Histogram *out) {
    DEVICE_CALL(handle);
    u64 all[5];
    if (numbers(handle->gpu, "histogram", all, 5) != 5) ANSWER(NOT_SUPPORTED);
    *out = (Histogram){(u32)all[0], (u32)all[1], (u32)all[2], (u32)all[3], (u32)all[4]};
    ANSWER(OK);
}

static int pages(Handle *handle, u32 cause, u32 *count, u64 *addresses, u64 *times) {
    u64 all[128];
    int found = numbers(handle->gpu, cause ? "pages.dbe" : "pages.sbe", all, 128);
    if (found < 0) return NOT_SUPPORTED;
    u32 room = *count;
    *count = (u32)found;
    if (room < *count) return TOO_SMALL;
    /* The binding asks for the size with one argument too few: where there is nothing to write, nothing is touched. */
    for (int at = 0; at < found; at++) {
        addresses[at] = all[at];
        if (times) times[at] = 0;
    }
    return OK;
}

EXPORT int nvmlDeviceGetRetiredPages(Handle *handle, u32 cause, u32 *count, u64 *addresses) {
    DEVICE_CALL(handle);
    ANSWER(pages(handle, cause, count, addresses, NULL));
}

EXPORT int nvmlDeviceGetRetiredPages_v2(Handle *handle, u32 cause, u32 *count, u64 *addresses, u64 *times) {
    DEVICE_CALL(handle);
    ANSWER(pages(handle, cause, count, addresses, times));
}

EXPORT int nvmlDeviceGetRepairStatus(Handle *handle, Repair *out) {
    DEVICE_CALL(handle);
    if (out->version != 0x0100000C) ANSWER(VERSION);
    ANSWER(put_two(handle->gpu, "repair", &out->channel, &out->tpc));
}

/* `abi.unrepairable = 4`: newer drivers put the flag where older ones had the version. */
EXPORT int nvmlDeviceGetUnrepairableMemoryFlag_v1(Handle *handle, u32 *words) {
    DEVICE_CALL(handle);
    ANSWER(put_u32(handle->gpu, "unrepairable", &words[number_or(NO_GPU, "abi.unrepairable", 8) == 4 ? 0 : 1]));
}

/* --- fields, links, fabric */

/* `u32:5`, `i32:-8`, `f64:0.5`, `ret:3`, or a plain number, which is an u64. */
static void field(int gpu, Field *out) {
    char key[64], value[VALUE];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    out->timestamp = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
    out->latency = 0;
    out->value.u64_ = 0;
    snprintf(key, sizeof key, "fi.%u.%u", out->id, out->scope);
    if (!find(gpu, key, value)) { out->ret = NOT_SUPPORTED; return; }
    char *colon = strchr(value, ':');
    const char *number = colon ? colon + 1 : value;
    out->ret = OK;
    if (!strncmp(value, "ret:", 4)) out->ret = (u32)atoi(number);
    else if (!strncmp(value, "f64:", 4)) out->type = 0, out->value.f64 = strtod(number, NULL);
    else if (!strncmp(value, "u32:", 4)) out->type = 1, out->value.u32_ = (u32)strtoul(number, NULL, 0);
    else if (!strncmp(value, "i64:", 4)) out->type = 4, out->value.i64 = strtoll(number, NULL, 0);
    else if (!strncmp(value, "i32:", 4)) out->type = 5, out->value.i32 = (int32_t)strtol(number, NULL, 0);
    else if (colon) out->type = 3, out->value.u64_ = strtoull(number, NULL, 0);
    else { out->type = 3; counted(gpu, key, &out->value.u64_); }
}

EXPORT int nvmlDeviceGetFieldValues(Handle *handle, int count, Field *fields) {
    DEVICE_CALL(handle);
    for (int at = 0; at < count; at++) field(handle->gpu, &fields[at]);
    ANSWER(OK);
}

EXPORT int nvmlDeviceGetNvLinkErrorCounter(Handle *handle, u32 link, u32 counter, u64 *out) {
    DEVICE_CALL(handle);
    char key[64];
    snprintf(key, sizeof key, "nvlink.%u.err.%u", link, counter);
    ANSWER(put_u64(handle->gpu, key, out));
}

EXPORT int nvmlDeviceGetGpuFabricInfoV(Handle *handle, Fabric *out) {
    DEVICE_CALL(handle);
    char value[VALUE], uuid[64] = "";
    unsigned state, status, mask, summary, clique;
    int newest = (int)number_or(NO_GPU, "abi.fabric_max", 3), version = (int)(out->version >> 24);
    if ((out->version != 0x02000024 && out->version != 0x03000028) || version > newest) ANSWER(VERSION);
    if (!find(handle->gpu, "fabric", value)) ANSWER(NOT_SUPPORTED);
    if (sscanf(value, "%i %i %i %i %i %63s", (int *)&state, (int *)&status, (int *)&mask, (int *)&summary, (int *)&clique, uuid) < 5) ANSWER(999);
    out->state = state, out->status = status, out->mask = mask, out->clique = clique;
    memset(out->uuid, 0, sizeof out->uuid);
    for (int at = 0; at < 16 && uuid[at * 2] && uuid[at * 2 + 1]; at++) {
        unsigned byte;
        if (sscanf(uuid + at * 2, "%2x", &byte) == 1) out->uuid[at] = (uint8_t)byte;
    }
    if (version == 3) out->summary = (uint8_t)summary;
    ANSWER(OK);
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(Handle *handle, u32 *count, Process *out) {
    DEVICE_CALL(handle);
    char value[VALUE], *rest = value, *word;
    u32 room = *count, found = 0;
    if (!find(handle->gpu, "procs", value)) ANSWER(NOT_SUPPORTED);
    while ((word = strsep(&rest, " "))) {
        if (!*word) continue;
        char *colon = strchr(word, ':');
        if (found < room) out[found] = (Process){(u32)strtoul(word, NULL, 0), colon ? strtoull(colon + 1, NULL, 0) : ~0ull, ~0u, ~0u};
        found++;
    }
    *count = found;
    ANSWER(found > room ? TOO_SMALL : OK);
}

/* --- MIG: instances have handles of their own, for the name, UUID, memory and numbers */

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(Handle *handle, u32 index, Handle **out) {
    DEVICE_CALL(handle);
    Mig mig;
    if (index >= (u32)number_or(handle->gpu, "mig_max", 0)) ANSWER(INVALID);
    if (!instance_of(handle->gpu, (int)index, &mig)) ANSWER(NOT_FOUND);
    *out = handle_of_instance(handle->gpu, (int)index);
    ANSWER(OK);
}

#define MIG_NUMBER(fn, member) \
    EXPORT int fn(Handle *handle, u32 *out) { \
        ANY_DEVICE_CALL(handle); \
        Mig mig; \
        if (handle->mig == WHOLE) ANSWER(NOT_SUPPORTED); \
        if (!instance_of(handle->gpu, handle->mig, &mig)) ANSWER(NOT_FOUND); \
        *out = mig.member; \
        ANSWER(OK); \
    }
MIG_NUMBER(nvmlDeviceGetGpuInstanceId, gi)
MIG_NUMBER(nvmlDeviceGetComputeInstanceId, ci)

/* --- GPM: samples of counters, and metrics between two of them; `gpm.<metric>` says what they come to */

EXPORT int nvmlGpmQueryDeviceSupport(Handle *handle, GpmSupport *out) {
    DEVICE_CALL(handle);
    if (out->version != 1) ANSWER(VERSION);
    out->supported = (u32)number_or(handle->gpu, "gpm.supported", 0);
    ANSWER(OK);
}

EXPORT int nvmlGpmSampleAlloc(GpmSample **out) {
    CALL(1);
    *out = calloc(1, sizeof **out);
    ANSWER(*out ? OK : 20);
}

EXPORT int nvmlGpmSampleFree(GpmSample *sample) {
    CALL(1);
    if (!sample) ANSWER(INVALID);
    free(sample);
    ANSWER(OK);
}

static int take_sample(const Handle *handle, int instance, GpmSample *sample) {
    if (!number_or(handle->gpu, "gpm.supported", 0)) return NOT_SUPPORTED;
    *sample = (GpmSample){handle->gpu, instance, 1, {0, 0}};
    clock_gettime(CLOCK_MONOTONIC, &sample->taken);
    return OK;
}

EXPORT int nvmlGpmSampleGet(Handle *handle, GpmSample *sample) {
    DEVICE_CALL(handle);
    ANSWER(take_sample(handle, WHOLE, sample));
}

EXPORT int nvmlGpmMigSampleGet(Handle *handle, u32 instance, GpmSample *sample) {
    DEVICE_CALL(handle);
    Mig mig;
    if (!in_mig_mode(handle->gpu)) ANSWER(NOT_SUPPORTED);
    for (int index = 0; index < (int)number_or(handle->gpu, "mig_max", 0); index++)
        if (instance_of(handle->gpu, index, &mig) && mig.gi == instance) ANSWER(take_sample(handle, (int)instance, sample));
    ANSWER(INVALID);
}

/* `gpm.<metric>.<GPU instance>`, then `gpm.<metric>`. */
static void gpm_metric(const GpmSample *sample, GpmMetric *out) {
    char key[64], value[VALUE];
    snprintf(key, sizeof key, "gpm.%u.%d", out->id, sample->instance);
    int found = sample->instance != WHOLE && find(sample->gpu, key, value);
    snprintf(key, sizeof key, "gpm.%u", out->id);
    if (!found && !find(sample->gpu, key, value)) { out->ret = NOT_SUPPORTED; return; }
    out->ret = OK;
    out->value = strtod(value, NULL);
}

EXPORT int nvmlGpmMetricsGet(GpmMetricsGet *get) {
    const GpmSample *one = get->first, *two = get->second;
    CALL_FOR(two && two->filled ? two->gpu : NO_GPU);
    if (!one || !two || !one->filled || !two->filled) ANSWER(INVALID);
    if (get->version != 1) ANSWER(VERSION);
    int64_t apart = (two->taken.tv_sec - one->taken.tv_sec) * 1000000000 + two->taken.tv_nsec - one->taken.tv_nsec;
    if (one->gpu != two->gpu || one->instance != two->instance || apart <= 0) ANSWER(INVALID);
    for (u32 at = 0; at < get->count; at++) gpm_metric(two, &get->metrics[at]);
    ANSWER(OK);
}

/* --- events */

typedef struct { int watch; long offset; u64 masks[MOST_GPUS]; Handle *members[MOST_GPUS]; } EventSet;

static const char *events_path(char out[VALUE]) {
    const char *path = getenv("NVML_SIM_STATE");
    snprintf(out, VALUE, "%s.events", path ? path : "/nonexistent");
    return out;
}

EXPORT int nvmlEventSetCreate(EventSet **out) {
    CALL(1);
    char path[VALUE];
    struct stat now;
    *out = calloc(1, sizeof **out);
    (*out)->offset = stat(events_path(path), &now) ? 0 : now.st_size;
    /* An event is a line more; another state is another file in its place. */
    (*out)->watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    inotify_add_watch((*out)->watch, path, IN_MODIFY);
    char *slash = strrchr(path, '/');
    if (slash) *slash = 0;
    inotify_add_watch((*out)->watch, path, IN_MOVED_TO);
    ANSWER(OK);
}

EXPORT int nvmlEventSetFree(EventSet *set) {
    CALL(1);
    close(set->watch);
    free(set);
    ANSWER(OK);
}

EXPORT int nvmlDeviceRegisterEvents(Handle *handle, u64 mask, EventSet *set) {
    DEVICE_CALL(handle);
    if (mask & ~(u64)number_or(handle->gpu, "events_mask", 0)) ANSWER(NOT_SUPPORTED);
    set->masks[handle->gpu] |= mask;
    set->members[handle->gpu] = handle;
    ANSWER(OK);
}

/* The next whole line that concerns the set; a torn last line is left for later. */
static int next_event(EventSet *set, EventData *out) {
    char path[VALUE], line[256];
    FILE *file = fopen(events_path(path), "r");
    int found = 0;
    if (!file) return 0;
    fseek(file, set->offset, SEEK_SET);
    while (!found && fgets(line, sizeof line, file) && strchr(line, '\n')) {
        int gpu;
        unsigned long long type, data = 0;
        unsigned gi = ~0u, ci = ~0u;
        set->offset = ftell(file);
        if (sscanf(line, "%d %llx %llu %u %u", &gpu, &type, &data, &gi, &ci) < 2 || gpu < 0 || gpu >= MOST_GPUS) continue;
        /* `abi.any_set`: events come through any set, as from NVIDIA's own mock; they name their GPU all the same. */
        int any = number_or(NO_GPU, "abi.any_set", 0) != 0;
        if (!any && !(set->masks[gpu] & type)) continue;
        *out = (EventData){any ? handle_of(gpu) : set->members[gpu], type, data, gi, ci};
        found = 1;
    }
    fclose(file);
    return found;
}

EXPORT int nvmlEventSetWait_v2(EventSet *set, EventData *out, u32 milliseconds) {
    CALL(1);
    struct timespec now;
    char news[4096];
    for (;;) {
        for (int gpu = 0; gpu < MOST_GPUS; gpu++) {
            if (!set->members[gpu]) continue;
            if (number_or(gpu, "lost", 0)) ANSWER(LOST); /* at once, every time: as the real one does */
            if (stale(set->members[gpu])) ANSWER(999); /* its set is of no use any more */
        }
        if (next_event(set, out)) ANSWER(OK);
        clock_gettime(CLOCK_MONOTONIC, &now);
        int64_t waited = (now.tv_sec - call.began.tv_sec) * 1000 + (now.tv_nsec - call.began.tv_nsec) / 1000000;
        if (waited >= milliseconds) ANSWER(TIMEOUT);
        poll(&(struct pollfd){set->watch, POLLIN, 0}, 1, (int)(milliseconds - waited));
        while (read(set->watch, news, sizeof news) > 0) {}
    }
}

/* What a test compares with the binding's own structs. */
EXPORT const struct { char name[24]; u32 size; } vitald_simulated_sizes[] = {
    {"PciInfo", sizeof(Pci)}, {"Memory", sizeof(Memory)}, {"Memory_v2", sizeof(MemoryV2)}, {"Utilization", sizeof(Utilization)},
    {"FieldValue", sizeof(Field)}, {"SramStatus", sizeof(Sram)}, {"RowHistogram", sizeof(Histogram)}, {"RepairStatus", sizeof(Repair)},
    {"Margin", sizeof(Margin)}, {"Temperature_v1", sizeof(Temperature)}, {"Fabric_v3", sizeof(Fabric)}, {"ProcessInfo", sizeof(Process)},
    {"EventData", sizeof(EventData)}, {"Platform_v2", sizeof(Platform)}, {"ExcludedDevice", sizeof(Excluded)},
    {"GpmSupport", sizeof(GpmSupport)}, {"GpmMetric", sizeof(GpmMetric)}, {"", 0},
};
