#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace aft::client {

// A child process with pipes for its three streams. The destructor kills it if it still runs.
class Process {
 public:
  // `argv[0]` is a path or is looked up in PATH. `env`: "NAME=value" added to the environment.
  explicit Process(const std::vector<std::string>& argv, const std::vector<std::string>& env = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Writes all of `text` to its standard input.
  void Send(const std::string& text);
  // As Send, and then closes its standard input.
  void SendInput(const std::string& text);
  // Blocks until standard output has `text`. Returns false if it ends without `text`.
  bool WaitForOutput(const std::string& text) { return WaitFor(text, out_); }
  // Does the same as WaitForOutput, for standard error.
  bool WaitForError(const std::string& text) { return WaitFor(text, err_); }
  // Blocks until poll() finds one of `events` on the descriptor. Returns false if both outputs have
  // ended first, as they have when the program has ended.
  bool WaitForEvents(int fd, int16_t events);
  // Returns the next line of standard output without its line break, or "" if there is no more
  // line.
  std::string ReadLine();
  // Closes the reading end of its standard output.
  void CloseOutput();
  void Signal(int signal);
  pid_t pid() const { return pid_; }

  // Closes standard input, reads both outputs to their end; returns the exit code, or 128 + signal.
  int Wait();
  // As Wait, but neither closes standard input nor reads the outputs.
  int WaitUnread();

  // What has been read so far.
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

 private:
  bool WaitFor(const std::string& text, const std::string& in);
  // Reads once from each output that is ready. Returns false if both outputs have ended. `other` is
  // polled as well.
  bool ReadSome(pollfd* other = nullptr);

  pid_t pid_ = -1;
  int in_fd_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  std::string out_;
  size_t read_ = 0;  // bytes that ReadLine has returned
  std::string err_;
};

// A named pipe in the place of a file that a program reads. It contains only spaces, and it ends
// when this object is destroyed.
class EndlessFile {
 public:
  // If there is such a pipe already, the object uses that one.
  explicit EndlessFile(const std::string& path);
  ~EndlessFile();
  EndlessFile(const EndlessFile&) = delete;
  EndlessFile& operator=(const EndlessFile&) = delete;

  // Blocks until the program reads the file. Returns false if the program has ended.
  bool WaitForReader(Process& program) const { return program.WaitForEvents(fd_, POLLOUT); }
  // Adds text after the spaces. REQUIRES: WaitForReader has returned true.
  void Write(const std::string& text) const;

 private:
  int fd_ = -1;
};

// A program that has run to its end, with `input` as its standard input.
struct Ended {
  int code = 0;
  std::string out;
  std::string err;
};
Ended RunToEnd(const std::vector<std::string>& argv, const std::string& input = "",
               const std::vector<std::string>& env = {});

}  // namespace aft::client
