//! The `piton` program: everything is in the library beside it.

fn main() -> std::process::ExitCode {
    piton::main()
}
