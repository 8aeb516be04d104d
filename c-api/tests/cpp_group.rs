//! Groups through `crosstie.hpp`: a program of one rank that calls everything.

use std::path::Path;
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../");

const PROGRAM: &str = r#"#include <crosstie.hpp>
#include <cstdio>
#include <cstring>

static int gather(void *, const void *mine, std::size_t bytes, void *all)
{
    std::memcpy(all, mine, bytes);
    return 0;
}

// of the host's; the loopback takes more, for fewer connections
static crosstie::storage<64, 64, 64> place;
alignas(XTIE_STORAGE_ALIGN) static unsigned char group_place[XTIE_GROUP_BYTES(1, 3, 2, 1, 1)];

template <typename Call>
static crosstie::ticket started(crosstie::group &group, Call call)
{
    for (;;) {
        if (auto ticket = call())
            return *ticket;
        group.progress();
    }
}

static int failed(const char *what)
{
    std::fprintf(stderr, "failed: %s\n", what);
    return 1;
}

static int words(crosstie::group &group, crosstie::window &window)
{
    const xtie_add one{0, 0, 1}, two{1, 0, 2};
    started(group, [&] { return window.signal(0, one); });
    started(group, [&] { return window.signal_with_fence(0, one); });
    group.fence(0);
    group.wait_local(started(group, [&] { return window.signal_counter(0, two, one); }));
    group.flush();
    window.wait_signal(0, XTIE_COMPARE_EQUAL, 2);
    window.wait_signal_from(1, 0, XTIE_COMPARE_GREATER, 1);
    window.wait_counter(0, XTIE_COMPARE_EQUAL, 1);
    if (window.read_signal(0) != 2 || window.read_signal_from(1, 0) != 2 ||
        window.read_counter(0) != 1)
        return failed("a word");
    window.reset_signal(0);
    window.reset_signal(1);
    window.reset_counter(0);
    window.barrier();
    return window.read_signal(0) + window.read_counter(0) == 0 ? 0 : failed("a reset");
}

static int run()
{
    xtie_endpoint_config options = crosstie::config();
    options.device = 1;  // the loopback
    options.connections_max = 4;
    crosstie::endpoint endpoint(place.bytes, sizeof place.bytes, options);
    xtie_group_config config = crosstie::group_config();
    config.ranks = 1;
    config.windows_max = 3;
    config.signals_max = 2;
    config.counters_max = config.barriers_max = 1;
    config.gather = gather;
    if (crosstie::group_bytes(config) != sizeof group_place)
        return failed("the size of a group");
    crosstie::group group(endpoint, group_place, sizeof group_place, config);
    crosstie::window window = group.alloc(4096);
    crosstie::memory memory = endpoint.alloc(4096);
    crosstie::window second = group.register_window(memory, XTIE_WINDOW_READ_ONLY);
    window.exchange();
    second.exchange();
    if (window.bytes(0) != window.size())
        return failed("the size of a window");

    std::memset(window.data(), 7, 64);
    const xtie_add one{0, 0, 1};
    started(group, [&] { return window.put(window.transfer(0, 64, 0, 1024)); });
    started(group, [&] { return window.put_signal(window.transfer(0, 64, 0, 1088), one); });
    auto put = [&] { return window.put_signal_counter(window.transfer(0, 8, 0, 1152), one, one); };
    crosstie::ticket ticket = started(group, put);
    while (!group.test_local(ticket)) {
    }
    window.wait_signal(0, XTIE_COMPARE_GREATER_EQUAL, 2, 10000);
    group.flush(0);
    group.wait_local(
        started(group, [&] { return window.get(window.transfer(2048, 136, 0, 1024)); }));
    if (std::memcmp(window.data() + 2048, window.data() + 1024, 136) != 0 ||
        window.data()[2048 + 135] != 7)
        return failed("bytes");
    window.reset_signal(0);
    window.reset_counter(0);
    xtie_all_gather_config wanted{};
    wanted.struct_size = sizeof wanted;
    wanted.bytes = 64;
    crosstie::all_gather all = group.prepare(window, wanted);
    std::memset(window.data() + 512, 9, 64);
    all.exec(window.data() + 512, 64, nullptr);
    all.verify();
    group.all_gather(window, window.data() + 512, window.data() + 128, 64, nullptr);
    if (window.data()[63] != 9 || window.data()[191] != 9)
        return failed("an AllGather");
    try {
        second.put(window.transfer(0, 8, 0, 0));
        return failed("a put into memory that is only read");
    } catch (const crosstie::error &error) {
        if (error.code() != XTIE_ERR_READ_ONLY)
            return failed(error.what());
    }
    try {
        window.count_by_nic(ticket, one);
        return failed("a NIC that the loopback does not have");
    } catch (const crosstie::error &error) {
        if (error.code() != XTIE_ERR_NO_NIC_COUNTER)
            return failed(error.what());
    }
    group.abort();
    group.abort_clear();
    crosstie::window moved = std::move(second);
    return second || !moved ? failed("a window that was moved") : words(group, window);
}

int main()
{
    try {
        return run();
    } catch (const crosstie::error &error) {
        return failed(error.what());
    }
}
"#;

#[test]
fn cpp_program_opens_a_group_and_uses_its_windows() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (folder.join("cpp_group.cpp"), folder.join("cpp_group"));
    std::fs::write(&source, PROGRAM).unwrap();
    let libraries = std::fs::read_to_string(format!("{ROOT}packaging/native-libs")).unwrap();
    let built = Command::new("c++")
        .args(["-std=c++17", "-Wall", "-Wextra", "-pedantic", "-Weffc++", "-Werror"])
        .arg(format!("-I{ROOT}c-api/include"))
        .arg(&source)
        .arg(std::env::current_exe().unwrap().with_file_name("libcrosstie_c.a"))
        .args(libraries.split_whitespace())
        .arg("-o")
        .arg(&program)
        .output()
        .expect("a C++ compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let done = Command::new("timeout").args(["600"]).arg(&program).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
