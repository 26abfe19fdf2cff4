"""`coterie check-algo`: checks that an algorithm updates, resumes and learns as it should, and names the mistake."""
