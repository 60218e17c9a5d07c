#include "tests/unit/client/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "base/check.h"

extern char** environ;

namespace aft::client {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

void CloseFd(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

// Reads once, and closes the descriptor at its end.
void ReadOnce(int& fd, std::string& text) {
  std::array<char, 4096> buffer;
  const ssize_t size = read(fd, buffer.data(), buffer.size());
  if (size > 0) text.append(buffer.data(), static_cast<size_t>(size));
  if (size <= 0) CloseFd(fd);
}

}  // namespace

Process::Process(const std::vector<std::string>& argv, const std::vector<std::string>& env) {
  // Writing to a child that has ended must not end the test.
  signal(SIGPIPE, SIG_IGN);
  std::array<int, 2> in, out, err;
  AFT_CHECK(pipe2(in.data(), O_CLOEXEC) == 0 && pipe2(out.data(), O_CLOEXEC) == 0 &&
            pipe2(err.data(), O_CLOEXEC) == 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);

  // A test in the background of a shell ignores SIGINT, which the child must not inherit.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t defaults;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGINT);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);

  std::vector<std::string> arguments = argv;
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.push_back(*variable);
  variables.insert(variables.begin(), env.begin(), env.end());
  const int error = posix_spawnp(&pid_, argv.front().c_str(), &actions, &attributes,
                                 Pointers(arguments).data(), Pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(in[0]);
  close(out[1]);
  close(err[1]);
  in_fd_ = in[1];
  out_fd_ = out[0];
  err_fd_ = err[0];
  // For a program that does not exist, Wait returns 127, as a shell does.
  if (error != 0) pid_ = -1;
}

Process::~Process() {
  Signal(SIGKILL);
  Wait();
}

void Process::Send(const std::string& text) {
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t n = write(in_fd_, &text[sent], text.size() - sent);
    if (n <= 0) break;
    sent += static_cast<size_t>(n);
  }
}

void Process::SendInput(const std::string& text) {
  Send(text);
  CloseFd(in_fd_);
}

bool Process::WaitFor(const std::string& text, const std::string& in) {
  while (in.find(text) == std::string::npos) {
    if (!ReadSome()) return in.find(text) != std::string::npos;
  }
  return true;
}

bool Process::WaitForEvents(int fd, int16_t events) {
  pollfd watched = {fd, events, 0};
  while (watched.revents == 0) {
    if (!ReadSome(&watched)) return false;
  }
  return true;
}

std::string Process::ReadLine() {
  size_t end;
  while ((end = out_.find('\n', read_)) == std::string::npos) {
    if (!ReadSome()) return "";
  }
  const size_t begin = std::exchange(read_, end + 1);
  return out_.substr(begin, end - begin);
}

void Process::CloseOutput() { CloseFd(out_fd_); }

void Process::Signal(int signal) {
  if (pid_ > 0) kill(pid_, signal);
}

bool Process::ReadSome(pollfd* other) {
  // poll() ignores negative descriptors.
  std::array<pollfd, 3> fds = {pollfd{out_fd_, POLLIN, 0}, pollfd{err_fd_, POLLIN, 0},
                               other != nullptr ? *other : pollfd{-1, 0, 0}};
  if (out_fd_ < 0 && err_fd_ < 0) return false;
  if (poll(fds.data(), fds.size(), -1) < 0) return errno == EINTR;
  if (fds[0].revents != 0) ReadOnce(out_fd_, out_);
  if (fds[1].revents != 0) ReadOnce(err_fd_, err_);
  if (other != nullptr) *other = fds[2];
  return true;
}

int Process::Wait() {
  CloseFd(in_fd_);
  while (ReadSome()) {
  }
  return WaitUnread();
}

int Process::WaitUnread() {
  if (pid_ < 0) return 127;
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

EndlessFile::EndlessFile(const std::string& path) {
  AFT_CHECK(mkfifo(path.c_str(), 0600) == 0 || errno == EEXIST);
  // The pipe is opened in both directions, because that does not wait for a program that reads it.
  fd_ = open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  // It is full, so that it can be written to only when a program has read from it.
  const std::string spaces(static_cast<size_t>(fcntl(fd_, F_GETPIPE_SZ)), ' ');
  AFT_CHECK(write(fd_, spaces.data(), spaces.size()) > 0);
}

EndlessFile::~EndlessFile() { close(fd_); }

void EndlessFile::Write(const std::string& text) const {
  AFT_CHECK(write(fd_, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

Ended RunToEnd(const std::vector<std::string>& argv, const std::string& input,
               const std::vector<std::string>& env) {
  Process process(argv, env);
  process.SendInput(input);
  const int code = process.Wait();
  return {code, process.out(), process.err()};
}

}  // namespace aft::client
