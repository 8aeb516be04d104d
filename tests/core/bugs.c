// A bug of the library calls the program's hook, and traps where that comes back. Links an archive
// that has a function with a bug in it, which none that is shipped has.
#include <crosstie_provider.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

void xtie_core_panic_for_tests(void);

static int failures;

static void expect(int holds, const char *what)
{
    if (holds)
        return;
    failures++;
    printf("not as expected: %s\n", what);
}

static void hook(void *userdata, const char *file, size_t file_bytes, uint32_t line)
{
    int told = file_bytes != 0 && memchr(file, 0, file_bytes) == NULL && line != 0;
    if (userdata == (void *)&failures)
        _exit(told ? 3 : 4);  // a hook may end the program by itself
}

static int child_status(void *userdata)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        xtie_core_panic_hook_set(hook, userdata);
        xtie_core_panic_for_tests();
        _exit(5);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return status;
}

int main(void)
{
    int status = child_status(&failures);
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 3, "a hook that ends the program");
    status = child_status(NULL);
    expect(WIFSIGNALED(status) && (WTERMSIG(status) == SIGILL || WTERMSIG(status) == SIGTRAP),
           "a trap behind the hook");
    return failures != 0;
}
