// gin [--lsa N] [--kill | --speed | --hazards]: kernels of two ranks on two GPUs use NCCL's device functions
// for GPU-initiated operations. Every case compares what arrived. scripts/gpu builds and runs it.
//
// --lsa N: the ranks that NCCL shall see in one LSA team; another number is a failure.
#include "cases.h"
#include "failures.h"
#include "hazards.h"
#include "speed.h"

static const char *mode_of(const Shared *shared) {
    if (shared->lsa_ranks == 0) return "?";
    return shared->lsa_ranks == RANKS ? "p2p" : "two teams";
}

static void version_of(char *text, size_t size) {
    snprintf(text, size, "%d.%d.%d", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
}

// One row for each case. Returns how many failed.
static int print_table(const Shared *shared, const std::vector<Case> &cases) {
    int failed = 0;
    char version[32];
    version_of(version, sizeof version);
    for (size_t i = 0; i < cases.size(); i++) {
        bool ok = true, skipped = true, open = true;
        char why[400] = "";
        for (int rank = 0; rank < RANKS; rank++) {
            ok &= shared->outcome[rank][i] == OK;
            skipped &= shared->outcome[rank][i] == SKIPPED;
            open &= shared->outcome[rank][i] == OPEN;
            if (shared->said[rank][i][0] != 0)
                snprintf(why + strlen(why), sizeof why - strlen(why), " rank %d: %s", rank,
                         shared->said[rank][i]);
        }
        failed += !ok && !skipped;
        printf("%-28s %-7s %-9s %s%s\n", cases[i].name.c_str(), version, mode_of(shared),
               skipped ? "not in this version" : ok ? "ok" : open ? "FAILED: not run" : "FAILED:",
               why);
    }
    return failed;
}

// What the parent knows of the case at which a pair ended.
static void note_end(Shared *shared, const Pair &pair, int at) {
    char why[160] = "";
    say_end(shared, pair, why, sizeof why);
    for (int rank = 0; rank < RANKS; rank++) {
        if (!went_well(pair, rank)) shared->outcome[rank][at] = FAILED;
        char *said = shared->said[rank][at];
        size_t used = strlen(said);
        snprintf(said + used, sizeof shared->said[0][0] - used, "%s%s", used > 0 ? "; " : "", why);
        why[0] = 0;
    }
}

// An entry that cannot be executed spoils its communicator, so this case has one of its own.
static void run_wrong(Shared *shared, std::vector<Case> &cases) {
    int at = cases.size();
    cases.push_back({"put behind the window", nullptr});
    shared_reset(shared);
    Pair pair = start_pair([&](int me) { return rank_wrong(shared, me, at); });
    if (!watch_pair(shared, pair)) note_end(shared, pair, at);
}

// Runs the cases, with a new pair behind each one that did not come to its end.
static int run_cases(Shared *shared, int lsa_wanted) {
    std::vector<Case> cases = all_cases();
    size_t next = 0;
    for (int pairs = 0; next < cases.size() && pairs < 4 && !told_to_end; pairs++) {
        shared_reset(shared);
        Pair pair = start_pair([&](int me) { return rank_cases(shared, me, cases, next); });
        bool well = watch_pair(shared, pair);
        int at = std::max({shared->at[0].load(), shared->at[1].load(), int(next)});
        if (well) break;
        bool set_up_failed = shared->at[0] < 0 || shared->at[1] < 0;
        note_end(shared, pair, at);
        next = at + 1;
        if (set_up_failed) break;
    }
    if (!told_to_end) run_wrong(shared, cases);
    int failed = print_table(shared, cases);
    if (lsa_wanted != 0 && shared->lsa_ranks != lsa_wanted) {
        printf("FAILED: an LSA team has %d ranks, and %d were wanted\n", shared->lsa_ranks.load(),
               lsa_wanted);
        failed++;
    }
    printf("%zu cases, %d failed, %d contexts\n", cases.size(), failed, shared->contexts.load());
    return failed != 0;
}

// Each hazard has its own pair: a hang costs one row.
static int run_hazards(Shared *shared) {
    std::vector<Case> cases;
    for (const Hazard &hazard : HAZARDS) cases.push_back({hazard.name, nullptr});
    for (size_t at = 0; at < cases.size() && !told_to_end; at++) {
        shared_reset(shared);
        Pair pair = start_pair([&](int me) { return rank_hazard(shared, me, at); });
        if (!watch_pair(shared, pair)) note_end(shared, pair, at);
    }
    int failed = print_table(shared, cases);
    printf("%zu hazards, %d failed\n", cases.size(), failed);
    return failed != 0;
}

static int run_speed(Shared *shared) {
    shared_reset(shared);
    Pair pair = start_pair([&](int me) { return rank_speed(shared, me); });
    bool well = watch_pair(shared, pair);
    char version[32], why[160] = "";
    version_of(version, sizeof version);
    if (!well) say_end(shared, pair, why, sizeof why);
    printf("%s %s\n%s", version, mode_of(shared), shared->lines);
    if (!well)
        printf("FAILED: %s%s %s\n", why, shared->said[0][0], shared->said[1][0]);
    return !well;
}

static int run_kill(Shared *shared) {
    char version[32];
    version_of(version, sizeof version);
    bool well = kill_a_peer(shared);
    printf("%s %s\n%s%s\n", version, mode_of(shared), shared->lines,
           well ? "killed peer: ok" : "killed peer: FAILED");
    return !well;
}

int main(int count, char **arguments) {
    int lsa_wanted = 0;
    char what = 'c';
    for (int i = 1; i < count; i++) {
        std::string argument = arguments[i];
        if (argument == "--kill") what = 'k';
        else if (argument == "--speed") what = 's';
        else if (argument == "--hazards") what = 'h';
        else if (argument == "--lsa" && i + 1 < count) lsa_wanted = atoi(arguments[++i]);
        else {
            fprintf(stderr, "usage: %s [--lsa N] [--kill | --speed | --hazards]\n", arguments[0]);
            return 2;
        }
    }
    end_when_told();
    Shared *shared = shared_page();
    if (what == 'k') return run_kill(shared);
    if (what == 's') return run_speed(shared);
    if (what == 'h') return run_hazards(shared);
    return run_cases(shared, lsa_wanted);
}
