// Runs a target on its corpus and on mutations of it: a plain stand-in for clang's libFuzzer, for
// every build and without instrumentation. What is worth mutating further, the targets say (Saw).
//
// The inputs run in a child process, each first copied to memory that is shared with this one. So
// whatever an input does (abort, crash, sanitizer's report, endless loop), it can be written down.

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "tests/fuzz/mutator.h"
#include "tests/fuzz/target.h"

namespace aft::fuzz {
namespace {

// Of this process: the processor's time, which other work on the machine does not change.
std::chrono::duration<double> CpuTime() {
  timespec now = {};
  AFT_CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) == 0);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

constexpr size_t kMaxInputBytes = 8192;
// One input in so many is blown up to this size.
constexpr int64_t kBlowEvery = 100;
constexpr size_t kBlownBytes = size_t{64} << 10;
constexpr size_t kMostPlaces = 4096;  // and so of inputs that are kept
constexpr int kMaxCpuSeconds = 60;    // of one input

struct Options {
  int64_t runs = 4000;
  int64_t seconds = 0;
  std::vector<std::string> files;
};

// What the child is at.
struct Shared {
  size_t size;
  bool running;
  char input[kMaxInputBytes + 2 * kBlownBytes];
};

std::unordered_set<size_t>& Places() {
  // All its buckets from the start: what it takes is not the target's.
  static auto& places = *new std::unordered_set<size_t>(kMostPlaces);
  return places;
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  AFT_CHECK(file.good());
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::vector<std::string> ReadCorpus(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());  // the same order everywhere
  std::vector<std::string> corpus;
  for (const auto& path : paths) corpus.push_back(ReadFile(path));
  AFT_CHECK(!corpus.empty());
  return corpus;
}

// The worst that was seen of something, and the size of the input that did it.
struct Worst {
  double value = 0;
  size_t size = 0;
  void Add(double other, size_t other_size) {
    if (other > value) *this = {other, other_size};
  }
};

class Child {
 public:
  explicit Child(Shared& shared) : shared_(shared) {}

  void RunFiles(const std::vector<std::string>& files) {
    for (const std::string& file : files) Run(ReadFile(file));
  }

  void RunRandom(const std::string& target, const Options& options) {
    const std::filesystem::path folder("tests/fuzz");
    const std::vector<std::string> corpus = ReadCorpus(folder / "corpus" / target);
    TestRandom random;
    Mutator mutator(random, ParseDictionary(ReadFile(folder / "dict" / (target + ".dict"))),
                    kMaxInputBytes);
    std::vector<std::string> kept;
    const auto any = [&]() -> const std::string& {
      const bool old = kept.empty() || random.Below(2) == 0;
      const std::vector<std::string>& from = old ? corpus : kept;
      return from[static_cast<size_t>(random.Below(static_cast<int64_t>(from.size())))];
    };
    for (const std::string& input : corpus) Run(input);
    const auto start = CpuTime();
    const auto is_over = [&](int64_t run) {
      return options.seconds > 0 ? CpuTime() - start >= std::chrono::seconds(options.seconds)
                                 : run >= options.runs;
    };
    int64_t runs = 0;
    for (; !is_over(runs); ++runs) {
      const bool blow = random.Below(kBlowEvery) == 0;
      std::string input = blow ? mutator.Blow(any(), kBlownBytes) : mutator.Mutate(any(), any());
      if (Run(input) && !blow) kept.push_back(std::move(input));
    }
    const double seconds = (CpuTime() - start).count();
    absl::PrintF(
        "fuzz_%s: %d inputs, %.0f per CPU second, no finding; %d places seen; slowest %.2f ms (%d "
        "bytes), most memory %.1f kB (%d bytes)\n",
        target, runs, static_cast<double>(runs) / seconds, Places().size(), slowest_.value * 1e3,
        slowest_.size, largest_.value / 1e3, largest_.size);
  }

 private:
  // Whether it led to a new place.
  bool Run(const std::string& input) {
    AFT_CHECK(input.size() <= sizeof(shared_.input));
    std::memcpy(shared_.input, input.data(), input.size());
    shared_.size = input.size();
    shared_.running = true;
    const itimerval limit = {.it_interval = {}, .it_value = {kMaxCpuSeconds, 0}};
    AFT_CHECK(setitimer(ITIMER_PROF, &limit, nullptr) == 0);  // SIGPROF ends the process
    // Of exactly its size, so that a sanitizer sees a read beyond it.
    const std::unique_ptr<uint8_t[]> copy(new uint8_t[input.size()]);
    std::copy(input.begin(), input.end(), copy.get());
    const size_t places = Places().size();
    const auto start = CpuTime();
    const PeakMemory memory;
    LLVMFuzzerTestOneInput(copy.get(), input.size());
    const int64_t bytes = memory.bytes();
    slowest_.Add((CpuTime() - start).count(), input.size());
    largest_.Add(static_cast<double>(bytes), input.size());
    const int64_t most = kMemory.fixed + kMemory.per_byte * static_cast<int64_t>(input.size());
    if (bytes > most) {
      absl::FPrintF(stderr,
                    "out of proportion: %d bytes of memory for an input of %d, at most %d\n", bytes,
                    input.size(), most);
      std::abort();
    }
    shared_.running = false;
    return Places().size() > places;
  }

  Shared& shared_;
  Worst slowest_;
  Worst largest_;
};

// Beside the programs of this build.
std::filesystem::path WriteFinding(const std::string& target, const Shared& shared) {
  const auto build = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
  const std::string input(shared.input, shared.size);
  const auto path =
      build / "fuzz" / absl::StrFormat("%s-%016x", target, std::hash<std::string>()(input));
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(input.data(), static_cast<std::streamsize>(input.size()));
  AFT_CHECK(file.good());
  return std::filesystem::proximate(path);
}

int Main(int argc, char** argv) {
  const std::filesystem::path program(argv[0]);
  const std::string target = program.filename().string().substr(sizeof("fuzz_") - 1);
  Options options;
  CLI::App app("Runs a fuzz target. From the root of the repository.");
  app.add_option("--runs", options.runs, "Inputs to make (AFT_TEST_SEED: which)")
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "Or for how long, of CPU time")
      ->envname("AFT_FUZZ_SECONDS");
  app.add_option("FILE", options.files, "Inputs to run instead");
  CLI11_PARSE(app, argc, argv);

  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  AFT_CHECK(memory != MAP_FAILED);
  auto& shared = *new (memory) Shared;
  const pid_t pid = fork();
  AFT_CHECK(pid >= 0);
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Child child(shared);
    if (options.files.empty()) {
      child.RunRandom(target, options);
    } else {
      child.RunFiles(options.files);
    }
    return 0;
  }
  int status = 0;
  AFT_CHECK(waitpid(pid, &status, 0) == pid);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && !shared.running) return 0;
  std::string how = "ended the process";
  if (WIFSIGNALED(status)) how = absl::StrCat("signal ", strsignal(WTERMSIG(status)));
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF) {
    how = absl::StrCat("more than ", kMaxCpuSeconds, " s of CPU time");
  }
  if (!shared.running) how += ", between inputs";
  const std::filesystem::path file = WriteFinding(target, shared);
  absl::FPrintF(stderr, "fuzz_%s: FINDING (%s) of %d bytes\nRepeat with: %s %s\n", target, how,
                shared.size, program.string(), file.string());
  return 1;
}

}  // namespace

void Saw(absl::string_view place) {
  constexpr size_t kMostBytes = 60;
  if (Places().size() == kMostPlaces) return;
  std::string plain;
  bool quoted = false;
  for (const char c : place.substr(0, kMostBytes)) {
    if (c == '"' || c == '\'') quoted = !quoted;
    if (!quoted && absl::ascii_isalpha(static_cast<unsigned char>(c))) plain.push_back(c);
  }
  Places().insert(std::hash<std::string>()(plain));
}

}  // namespace aft::fuzz

int main(int argc, char** argv) { return aft::fuzz::Main(argc, argv); }
