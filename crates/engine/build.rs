//! The words of handles as two texts. The crate that has them has tables of thousands of pointers, and
//! every start of a program that contains those corrects each one.

use std::path::Path;
use std::{env, fs, io};

use petname::Petnames;

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    let out = env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?;
    let words = Petnames::medium();
    for (file, words) in [("adjectives.txt", words.adjectives), ("nouns.txt", words.nouns)] {
        fs::write(Path::new(&out).join(file), words.join("\n"))?;
    }
    Ok(())
}
